"""The back end for CUDA: FlashAttention in torch, which reads the paged pool in place.

Nothing is gathered and no mask is made: the operator gets the block tables, and every shape is
that of the pass, so that a pass of fixed shape can be captured in a CUDA graph.

What the operator asks for differs by implementation. torch's own FlashAttention 2 reads pages of
a multiple of 256 positions and wants cumulative key lengths; FlashAttention 3 and 4, where they
are installed and activated (`torch.nn.attention.activate_flash_attention_impl`), read small pages
and refuse those lengths. With more than one split of the keys, version 2 returns wrong rows for
packed queries over pages (pytorch/pytorch #194167), and a session's result depends on others in the
pass: there is always one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from cloud_verifier.attention.paged_kv import LayerKV, PagedKV
from cloud_verifier.attention.spans import Index, PackedSpans, Span

varlen_attn: Callable[..., Any] | None = None
current_flash_attention_impl: Callable[[], str | None] | None = None
with contextlib.suppress(ImportError):  # before torch 2.13
    from torch.nn.attention import current_flash_attention_impl
    from torch.nn.attention.varlen import varlen_attn

FLASH_2_BLOCK = 256
"""Positions of a block that FlashAttention 2 can read."""

_LARGEST_HEAD = 256


def activated() -> str | None:
    """The FlashAttention that was activated in place of torch's own version 2, as in "FA3"."""
    return None if current_flash_attention_impl is None else current_flash_attention_impl()


def refusal(
    device: torch.device, dtype: torch.dtype, head_sizes: frozenset[tuple[int, int]]
) -> str | None:
    """Why this back end can't serve a model with these (key, value) head sizes; None if it can.

    Soft-capped scores are beyond it too, which is for the caller to know.
    """
    if device.type != "cuda":
        return "it needs a CUDA device"
    if varlen_attn is None:
        return "it needs torch 2.13 or later"
    major, minor = torch.cuda.get_device_capability(device)
    if major < 8:
        return f"it needs compute capability 8.0, and the device has {major}.{minor}"
    if dtype not in (torch.float16, torch.bfloat16):
        return f"it computes in float16 and bfloat16, not in {str(dtype).removeprefix('torch.')}"
    for key, value in head_sizes:
        if key != value or key % 8 or key > _LARGEST_HEAD:
            return (
                f"it needs heads of one size for keys and values, a multiple of 8 up to "
                f"{_LARGEST_HEAD}, and the model has {key} and {value}"
            )
    return None


@dataclass(frozen=True, slots=True)
class VarlenTables:
    """What a `VarlenPlan` of B spans is made of, on the host.

    `lengths` holds rows of B + 1: where each span's queries begin, where its keys would begin if
    they were packed, and how many keys it has (one entry too many).
    """

    positions: Index  # [ΣT]
    slots: Index  # [ΣT]
    lengths: npt.NDArray[np.int32]  # [3, B + 1]
    blocks: npt.NDArray[np.int32]  # [B, most]
    longest: int  # tokens of the longest span
    reach: int  # positions of the longest context

    @classmethod
    def of(cls, spans: Sequence[Span], block_size: int) -> VarlenTables:
        """The tables of a pass."""
        packed = PackedSpans(spans, block_size)
        lengths = np.zeros((3, len(packed) + 1), np.int32)
        lengths[2, :-1] = ends = packed.start + packed.length
        np.cumsum(packed.length, out=lengths[0, 1:])
        np.cumsum(ends, out=lengths[1, 1:])
        return cls(
            positions=packed.positions,
            slots=packed.slots,
            lengths=lengths,
            blocks=packed.blocks.astype(np.int32),
            longest=int(packed.length.max()),
            reach=int(ends.max()),
        )


@dataclass(frozen=True, slots=True)
class VarlenPlan:
    """A `PassPlan` whose tensors may be buffers of fixed shape, filled anew for every pass.

    `longest` and `reach` are upper bounds; spans of no tokens may fill the tables up.
    """

    positions: torch.Tensor  # [1, ΣT], int64
    slots: torch.Tensor  # [ΣT], int64
    lengths: torch.Tensor  # [3, B + 1], int32, see `VarlenTables`
    blocks: torch.Tensor  # [B, most], int32
    longest: int
    reach: int
    block_size: int

    @classmethod
    def of(cls, spans: Sequence[Span], kv: PagedKV) -> VarlenPlan:
        """The plan of a pass of any shape."""
        tables = VarlenTables.of(spans, kv.block_size)
        places = torch.from_numpy(np.stack([tables.positions, tables.slots]))
        places = places.to(kv.device, non_blocking=True)
        return cls(
            positions=places[:1],
            slots=places[1],
            lengths=torch.from_numpy(tables.lengths).to(kv.device, non_blocking=True),
            blocks=torch.from_numpy(tables.blocks).to(kv.device, non_blocking=True),
            longest=tables.longest,
            reach=tables.reach,
            block_size=kv.block_size,
        )

    def attend(
        self,
        query: torch.Tensor,
        layer: LayerKV,
        *,
        scaling: float | None,
        window: int | None,
        softcap: float | None,
    ) -> torch.Tensor:
        """See `PassPlan`. Raises `ValueError` for soft-capped scores."""
        if softcap is not None or varlen_attn is None:
            raise ValueError("varlen attention does not bound scores")
        keys, values = layer.pages(self.block_size)
        # The operator aligns masks to a span's last key, and counts a window without the token
        # itself. A lone token sees all of its keys: without a mask, FlashAttention 2 lets the
        # query heads of a group share the keys that they read.
        causal = (-1, -1) if self.longest == 1 else (-1, 0)
        out: torch.Tensor = varlen_attn(
            query.contiguous(),
            keys,
            values,
            self.lengths[0],
            self.lengths[1] if activated() is None else None,
            self.longest,
            self.reach,
            scale=scaling,
            window_size=causal if window is None else (window - 1, 0),
            enable_gqa=query.shape[1] != layer.heads,
            seqused_k=self.lengths[2, :-1],
            block_table=self.blocks,
            num_splits=1,
        )
        return out
