"""Attention whose result for a token depends on the token's own history alone, bit for bit.

Each token attends in a call of its own over exactly the positions it may see, so that the call's
shape depends on the token's position and on nothing else: there is no padding, no mask and no
neighbour.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, groupby

import numpy as np
import torch
from torch.nn.functional import pad, scaled_dot_product_attention

from cloud_verifier.attention.paged_kv import LayerKV, PagedKV
from cloud_verifier.attention.sdpa import softcapped
from cloud_verifier.attention.spans import PackedSpans, Span


@dataclass(frozen=True, slots=True)
class _Context:
    """Blocks that some tokens see a part of: the row of each, where its part begins and ends."""

    blocks: torch.Tensor
    queries: Sequence[tuple[int, int, int]]


class FixedPlan:
    """Plans a forward of exactly `rows` rows on a CPU, padding behind the tokens of the spans.

    Padding writes into the scratch block, which the `PagedKV` must have, and attends to nothing.

    Attributes:
        positions: `[1, rows]`.
        slots: `[rows]`.

    Raises `ValueError` without that block.
    """

    def __init__(self, spans: Sequence[Span], kv: PagedKV, *, rows: int) -> None:
        self._packed = packed = PackedSpans(spans, kv.block_size)
        self._block_size = kv.block_size
        self._contexts: dict[int | None, list[_Context]] = {}
        if kv.scratch_block is None:
            raise ValueError("padding needs a scratch block")
        scratch = kv.scratch_block * kv.block_size
        padding = (0, rows - packed.tokens)
        self.positions = torch.from_numpy(np.pad(packed.positions, padding))[None]
        slots = np.pad(packed.slots, padding, constant_values=scratch)
        self.slots = torch.from_numpy(slots)

    def attend(
        self,
        query: torch.Tensor,
        layer: LayerKV,
        *,
        scaling: float | None,
        window: int | None,
        softcap: float | None,
    ) -> torch.Tensor:
        """As `PassPlan` has it; zeros for padding."""
        rows, heads = query.shape[:2]
        # Query head h·rep + r reads key head h.
        query = query.reshape(rows, layer.heads, heads // layer.heads, -1).contiguous()
        outputs = []
        for context in self._contexts_of(window):
            keys, values = layer.gather(context.blocks, 1, self._block_size)
            for row, low, end in context.queries:
                one = query[row : row + 1], keys[:, :, low:end], values[:, :, low:end]
                if softcap is None:
                    outputs.append(scaled_dot_product_attention(*one, scale=scaling))
                else:
                    outputs.append(softcapped(*one, None, scaling, softcap))
        out = torch.cat(outputs).flatten(1, 2)  # [tokens, Hq, D]
        return pad(out, (0, 0, 0, 0, 0, rows - len(out)))

    def _contexts_of(self, window: int | None) -> list[_Context]:
        contexts = self._contexts.get(window)
        if contexts is None:
            contexts = self._contexts[window] = list(self._plan(window))
        return contexts

    def _plan(self, window: int | None) -> Iterator[_Context]:
        packed, size = self._packed, self._block_size
        spans = np.repeat(np.arange(len(packed)), packed.length).tolist()
        lowest = np.zeros_like(packed.positions)
        if window is not None:
            np.maximum(packed.positions - window + 1, 0, out=lowest)
        tokens = zip(count(), spans, lowest.tolist(), packed.positions.tolist(), strict=False)
        # Neighbours of one session that see back to the same block share a copy of it.
        for (span, first), sharing in groupby(tokens, lambda token: (token[1], token[2] // size)):
            queries = [
                (row, low - first * size, position - first * size + 1)
                for row, _, low, position in sharing
            ]
            last = first + (queries[-1][2] - 1) // size
            yield _Context(torch.from_numpy(packed.blocks[span, first : last + 1]), queries)
