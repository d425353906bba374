"""What `torch.nn.attention.varlen.varlen_attn` computes and demands, in plain torch on any device.

The operator itself runs on CUDA only. Demands are those of FlashAttention 2 as torch 2.13 has it,
apart from the dtype.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from cloud_verifier.attention import varlen


def varlen_attn(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor | None,
    max_q: int,
    max_k: int,
    *,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: torch.Tensor,
    block_table: torch.Tensor,
    num_splits: int | None = None,
) -> torch.Tensor:
    """`query` `[T, Hq, D]`, `key` and `value` `[pages, page, Hkv, D]`; `[T, Hq, D]`.

    Rows of no sequence come out as NaN.
    """
    _, page, heads, size = key.shape
    count = len(cu_seq_q) - 1
    assert page % 256 == 0
    assert value.shape == key.shape
    assert query.shape[2] == size
    assert size % 8 == 0
    assert query.shape[1] % heads == 0
    assert enable_gqa or query.shape[1] == heads
    assert num_splits == 1, "wrong rows otherwise"
    assert cu_seq_k is not None
    for lengths, shape in (
        (cu_seq_q, (count + 1,)),
        (cu_seq_k, (count + 1,)),
        (seqused_k, (count,)),
        (block_table, (count, block_table.shape[1])),
    ):
        assert lengths.dtype == torch.int32
        assert lengths.shape == shape
        assert lengths.device == query.device
    assert cu_seq_q.is_contiguous()
    assert cu_seq_k.is_contiguous()
    assert seqused_k.is_contiguous()
    for tensor in (query, key, value, block_table):
        assert tensor.stride(-1) == 1
    if max_q == 1 and window_size == (-1, -1):
        assert len(query) == count, "lone queries are reshaped by sequence"
    out = torch.full_like(query, float("nan"))
    scale = size**-0.5 if scale is None else scale
    left, right = window_size
    for i, (first, last, used) in enumerate(
        zip(cu_seq_q[:-1].tolist(), cu_seq_q[1:].tolist(), seqused_k.tolist(), strict=True)
    ):
        assert last - first <= max_q
        assert used <= max_k
        if first == last:
            continue
        pages = block_table[i, : -(-used // page)].long()
        keys, values = (pool[pages].flatten(0, 1)[:used] for pool in (key, value))
        repeats = query.shape[1] // heads
        keys, values = (x.repeat_interleave(repeats, 1) for x in (keys, values))
        scores = torch.einsum("thd,lhd->htl", query[first:last], keys) * scale
        at = torch.arange(used - (last - first), used)[:, None]  # aligned to the last key
        seen = torch.arange(used)[None]
        hidden = torch.zeros(len(at), used, dtype=torch.bool)
        if left >= 0:
            hidden |= seen < at - left
        if right >= 0:
            hidden |= seen > at + right
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        out[first:last] = torch.einsum("htl,lhd->thd", weights, values)
    return out


@contextmanager
def installed() -> Iterator[None]:
    """Let `varlen` attention run here, on this reference."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(varlen, "varlen_attn", varlen_attn)
        patch.setattr(varlen, "refusal", lambda *_: None)
        yield
