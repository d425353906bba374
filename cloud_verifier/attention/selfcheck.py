"""Runs a back end on a small example beside plain attention, to see what it does on a device."""

from __future__ import annotations

from functools import cache

import torch

from cloud_verifier.attention.paged_kv import PagedKV, Planner
from cloud_verifier.attention.sdpa import SdpaPlan
from cloud_verifier.attention.spans import Span

TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 4e-2}
"""Largest difference of outputs, which are means of values around 1."""

_QUERY_HEADS, _HEADS = 4, 2
_SOFTCAP = 5.0


@cache
def disagreement(
    planner: Planner,
    block_size: int,
    device: torch.device,
    dtype: torch.dtype,
    head_sizes: tuple[int, int],
    softcapped: bool,
) -> str | None:
    """How the plans of `planner` differ from `SdpaPlan` in float32, in words; None if not at all.

    Tries grouped queries, ragged spans over scattered blocks, lone tokens, and a window.
    """
    key, value = head_sizes
    ends = [3 * block_size + 5, 70, 41]
    tables = ([5, 0, 7, 2], list(range(8, 8 - 70 // -block_size)), [1, 3, 4])
    blocks = 9 - 70 // -block_size
    generator = torch.Generator(device="cpu").manual_seed(1)
    tried, plain = (
        PagedKV(
            [(_HEADS, key, value)],
            num_blocks=blocks,
            block_size=block_size,
            device=device,
            dtype=kind,
            planner=make,
        )
        for kind, make in ((dtype, planner), (torch.float32, SdpaPlan))
    )
    ours, theirs = tried.layers[0], plain.layers[0]
    for pool, same in ((ours.keys, theirs.keys), (ours.values, theirs.values)):
        pool.copy_(torch.randn(pool.shape, generator=generator))
        same.copy_(pool)
    for lengths in ([3, 70, 1], [1, 1, 1]):
        spans = [
            Span(end - length, length, table)
            for end, length, table in zip(ends, lengths, tables, strict=True)
        ]
        query = torch.randn(sum(lengths), _QUERY_HEADS, key, generator=generator).to(device, dtype)
        for window in (None, 7):
            try:
                with torch.inference_mode():
                    got, want = (
                        kv.begin(spans).attend(
                            query.to(kv.dtype),
                            kv.layers[0],
                            scaling=None,
                            window=window,
                            softcap=_SOFTCAP if softcapped else None,
                        )
                        for kv in (tried, plain)
                    )
                    largest = float((got.float() - want).abs().max())
            except Exception as error:  # compilers and kernels fail in ways of their own
                return f"it fails on this device: {str(error).partition(chr(10))[0]}"
            if not largest <= TOLERANCE.get(dtype, 1e-3):
                return f"it computes something else on this device: off by {largest:.1e}"
    return None
