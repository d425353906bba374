"""The attention function and the name under which transformers finds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from cloud_verifier.attention.paged_kv import PagedKV

IMPLEMENTATION = "draftwire_packed"
"""Name under which `register` makes the attention known to transformers."""

KV = "draftwire_kv"
"""Keyword argument of `model(...)` that carries the `PagedKV` to the attention."""

# Arguments of other attention functions that change the result and that this one doesn't honour.
_REFUSED = ("s_aux", "position_bias", "head_mask")


def check_arguments(arguments: Mapping[str, object]) -> None:
    """Raise `ValueError` for an argument of other attention functions that changes the result."""
    refused = [name for name in _REFUSED if arguments.get(name) is not None]
    if refused:
        raise ValueError(f"attention over paged KV does not support {', '.join(refused)}")


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of the packed tokens over the pool, as transformers calls it.

    `query` is `[1, Hq, ΣT, D]`; `key` and `value` are the new ones only, already written.
    Returns `[1, ΣT, Hq, D]`. Raises `ValueError` for an argument it would have to ignore.
    """
    del key, value, attention_mask
    check_arguments(kwargs)
    kv: PagedKV = kwargs[KV]
    kv.windows.add(sliding_window)
    layer_idx: int = module.layer_idx  # type: ignore[assignment]
    out = kv.plan.attend(
        query[0].transpose(0, 1),
        kv.layers[layer_idx],
        scaling=scaling,
        window=sliding_window,
        softcap=softcap,
    )
    return out[None], None


def _no_mask(*args: object, **kwargs: object) -> None:
    """The mask transformers would build: none, the plan has it."""
    del args, kwargs


def register() -> None:
    """Make `IMPLEMENTATION` known to transformers, for `model.set_attn_implementation`."""
    AttentionInterface.register(IMPLEMENTATION, packed_attention)
    AttentionMaskInterface.register(IMPLEMENTATION, _no_mask)
