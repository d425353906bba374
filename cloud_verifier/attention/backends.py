"""Which attention back end serves a model on a device, and why not the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedConfig

from cloud_verifier.attention import flex, varlen
from cloud_verifier.attention.flex import FlexPlan
from cloud_verifier.attention.paged_kv import Planner
from cloud_verifier.attention.sdpa import SdpaPlan
from cloud_verifier.attention.selfcheck import disagreement
from cloud_verifier.attention.varlen import VarlenPlan
from draftwire.errors import InvalidRequest

BLOCK_SIZE = 16
"""Positions of a KV block, where the back end leaves the choice."""

NAMES = ("sdpa", "varlen", "flex")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A way to compute attention over the paged pool.

    `fixed_shape`: passes of one shape run the same operations on the same memory, whatever the
    contexts, so that a CUDA graph can replay them.
    """

    name: str
    planner: Planner = field(repr=False)
    block_size: int = BLOCK_SIZE
    fixed_shape: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a model asks of attention. `head_sizes` are those of keys and values of all layers."""

    device: torch.device
    dtype: torch.dtype
    head_sizes: frozenset[tuple[int, int]]
    softcapped: bool

    @classmethod
    def of(
        cls,
        config: PreTrainedConfig,
        shapes: Sequence[tuple[int, int, int]],
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> Need:
        """Of a model by its configuration and, per layer, key heads, key size and value size."""
        text = config.get_text_config(decoder=True)
        return cls(
            device=device,
            dtype=dtype,
            head_sizes=frozenset((key, value) for _, key, value in shapes),
            softcapped=getattr(text, "attn_logit_softcapping", None) is not None,
        )


def backend(name: str) -> Backend:
    """The back end of that name, of `NAMES`, for the FlashAttention that is active."""
    if name == "varlen":
        block_size = varlen.FLASH_2_BLOCK if varlen.activated() is None else BLOCK_SIZE
        return Backend(name=name, planner=VarlenPlan.of, block_size=block_size, fixed_shape=True)
    return Backend(name=name, planner=FlexPlan if name == "flex" else SdpaPlan)


def refusal(name: str, need: Need) -> str | None:
    """Why the back end `name` can't serve `need`, in words; None if it can.

    On a GPU a back end must also agree with plain attention on a small example that is run here:
    what it computes depends on the release, the device and what else is installed.
    """
    if name == "varlen":
        if need.softcapped:
            return "it has no soft-capping of scores, which the model uses"
        reason = varlen.refusal(need.device, need.dtype, need.head_sizes)
    elif name == "flex":
        reason = flex.refusal(need.device)
    else:
        return None
    if reason is None and need.device.type == "cuda":
        made = backend(name)
        for sizes in sorted(need.head_sizes):
            reason = reason or disagreement(
                made.planner, made.block_size, need.device, need.dtype, sizes, need.softcapped
            )
    return reason


def choose_backend(name: str, need: Need) -> Backend:
    """The back end to use: `name`, or for "auto" the fastest that serves `need`.

    Raises `InvalidRequest` for a name that is unknown or whose back end can't serve `need`.
    """
    if name == "auto":
        preferred: tuple[str, ...] = ()
        if need.device.type == "cuda":
            preferred = ("flex",) if need.softcapped else ("varlen",)
        name = next((n for n in preferred if refusal(n, need) is None), "sdpa")
        return backend(name)
    if name not in NAMES:
        raise InvalidRequest(
            f"attention {name!r} is unknown", remedy=f"choose auto, {', '.join(NAMES)}"
        )
    reason = refusal(name, need)
    if reason is not None:
        others = [n for n in NAMES if n != name and refusal(n, need) is None]
        raise InvalidRequest(
            f"attention {name!r} can't serve this model here: {reason}",
            remedy=f"choose auto, or {' or '.join(others)}",
        )
    return backend(name)
