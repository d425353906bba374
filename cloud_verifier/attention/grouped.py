"""Attention in groups: spans of like size are gathered, padded to the longest, and attend together.

Whole blocks are gathered; the mask hides what a span does not see of them. Indices and masks are
built once per pass and shape of attention with numpy; a layer costs one gather and one attention
per group. What differs between back ends is the mask and the operator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch

from cloud_verifier.attention.paged_kv import LayerKV, PagedKV
from cloud_verifier.attention.spans import Index, PackedSpans, Span

Mask = TypeVar("Mask")


@dataclass(frozen=True, slots=True)
class Group(Generic[Mask]):
    """Spans that attend together, B of them, padded to T tokens over L positions."""

    batch: int
    tokens: int
    context: int
    take: torch.Tensor | None  # [B·T] into the packed tokens; None: all of them, in order
    blocks: slice | torch.Tensor  # [B·n] of the pools, which hold at least L positions
    mask: Mask | None  # None: everything is visible


@dataclass(frozen=True, slots=True)
class Layout(Generic[Mask]):
    """How the packed tokens of a pass split into groups, for one window and grouping."""

    groups: tuple[Group[Mask], ...]
    put: torch.Tensor | None  # [ΣT] into the groups' padded outputs; None: already in order


class GroupedPlan(ABC, Generic[Mask]):
    """A `PassPlan` in groups; subclasses bring the mask and the operator."""

    def __init__(self, spans: Sequence[Span], kv: PagedKV) -> None:
        self._spans = PackedSpans(spans, kv.block_size)
        self._block_size = kv.block_size
        self._device = kv.device
        self._dtype = kv.dtype
        self._layouts: dict[tuple[int | None, int], Layout[Mask]] = {}
        self._positions = self._tensor(self._spans.positions)[None]
        self._slots = self._index(self._spans.slots)
        # What is masked away must still be finite, whatever the block's last owner left there.
        unwritten = self._tensor(self._spans.unwritten)
        if len(unwritten):
            for layer in kv.layers:
                layer.clear(unwritten)

    @property
    def positions(self) -> torch.Tensor:
        """See `PassPlan`."""
        return self._positions

    @property
    def slots(self) -> slice | torch.Tensor:
        """See `PassPlan`."""
        return self._slots

    def attend(
        self,
        query: torch.Tensor,
        layer: LayerKV,
        *,
        scaling: float | None,
        window: int | None,
        softcap: float | None,
    ) -> torch.Tensor:
        """See `PassPlan`."""
        layout = self.layout(window, query.shape[1] // layer.heads)
        outputs = []
        for group in layout.groups:
            keys, values = layer.gather(group.blocks, group.batch, self._block_size)
            chosen = query if group.take is None else query.index_select(0, group.take)
            chosen = chosen.view(group.batch, group.tokens, *query.shape[1:])
            seen = keys[:, :, : group.context], values[:, :, : group.context]
            out = self._attention(chosen, *seen, group.mask, scaling, softcap)
            outputs.append(out.flatten(0, 1))
        out = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return out if layout.put is None else out.index_select(0, layout.put)

    def layout(self, window: int | None, repeats: int) -> Layout[Mask]:
        """The groups for layers that see `window` positions back (None: all of them).

        `repeats` is the number of query heads per key head.
        """
        layout = self._layouts.get((window, repeats))
        if layout is None:
            layout = self._layouts[window, repeats] = self._lay_out(window, repeats)
        return layout

    @abstractmethod
    def _mask(self, query: Index, key: Index, window: int | None, repeats: int) -> Mask | None:
        """The mask of a group from the positions of its queries, `[B, T]`, and keys, `[B, L]`."""

    @abstractmethod
    def _attention(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: Mask | None,
        scaling: float | None,
        softcap: float | None,
    ) -> torch.Tensor:
        """`query` `[B, T, Hq, D]`, `keys` and `values` `[B, Hkv, L, D]`; `[B, T, Hq, D]`."""

    def _lay_out(self, window: int | None, repeats: int) -> Layout[Mask]:
        start, length, offset = self._spans.start, self._spans.length, self._spans.offset
        first = np.zeros_like(start)
        if window is not None:
            np.maximum(start - window + 1, 0, out=first)
            first -= first % self._block_size
        members = _partition(length.tolist(), (start + length - first).tolist())
        groups = tuple(self._group(rows, first, window, repeats) for rows in members)
        if len(groups) == 1 and groups[0].take is None:
            return Layout(groups, None)
        put = np.empty(self._spans.tokens, np.int64)
        base = 0
        for rows, group in zip(members, groups, strict=True):
            for i, row in enumerate(rows):
                size = length[row]
                put[offset[row] : offset[row] + size] = base + i * group.tokens + np.arange(size)
            base += group.batch * group.tokens
        return Layout(groups, self._tensor(put))

    def _group(
        self, rows: list[int], first: Index, window: int | None, repeats: int
    ) -> Group[Mask]:
        spans = self._spans
        start, length, low = spans.start[rows, None], spans.length[rows, None], first[rows, None]
        last = start + length - 1
        tokens, context = int(length.max()), int((last - low).max()) + 1
        # Padding repeats a span's last token and last block.
        query = np.minimum(start + np.arange(tokens), last)  # [B, T] positions
        key = low + np.arange(context)  # [B, L] positions
        nth = low // self._block_size + np.arange(-(-context // self._block_size))
        blocks = spans.blocks[np.asarray(rows)[:, None], np.minimum(nth, last // self._block_size)]
        take = None
        if len(rows) != len(spans) or tokens * len(rows) != spans.tokens:
            take = self._tensor((query - start + spans.offset[rows, None]).reshape(-1))
        return Group(
            batch=len(rows),
            tokens=tokens,
            context=context,
            take=take,
            blocks=self._index(blocks.reshape(-1)),
            mask=self._mask(query, key, window, repeats),
        )

    def _index(self, places: Index) -> slice | torch.Tensor:
        # A run of them needs no gather: a slice of the pools is a view.
        low = int(places[0])
        if places[-1] - low == len(places) - 1 and (np.diff(places) == 1).all():
            return slice(low, low + len(places))
        return self._tensor(places)

    def _tensor(self, values: Index) -> torch.Tensor:
        return torch.from_numpy(values).to(self._device, non_blocking=True)


def _partition(length: list[int], context: list[int]) -> list[list[int]]:
    """Rows that attend together, so that padding at most doubles the work.

    A chunk of a prompt beside one-token rows, or a long context beside short ones, would make
    the others as large as itself.
    """
    rows = sorted(range(len(length)), key=lambda i: (length[i], context[i]))
    groups: list[list[int]] = []
    useful = wide = 0
    for row in rows:
        area = length[row] * context[row]
        widest = max(wide, context[row])
        padded = (len(groups[-1]) + 1) * length[row] * widest if groups else 0
        # Small groups are merged regardless: a call per group costs more than their padding.
        if groups and (padded <= 2 * (useful + area) or padded <= 4096):
            groups[-1].append(row)
            useful, wide = useful + area, widest
        else:
            groups.append([row])
            useful, wide = area, context[row]
    return [sorted(group) for group in groups]
