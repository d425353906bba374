"""The plan of one packed pass: where each span's tokens read and write, and what they may see.

Built once per pass with numpy and shared by all layers. Spans of like size form a group; a group
pads to its longest member and attends in one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

FOLD_LIMIT = 32
"""Tokens a span up to which grouped queries are folded into rows, which repeats the mask; beyond
it, repeating keys and values costs less."""

_Index = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Span:
    """`length` tokens fed at positions `start`, `start + 1`, …, with their KV in `blocks`."""

    start: int
    length: int
    blocks: Sequence[int]

    @property
    def end(self) -> int:
        """Position after the last token."""
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class Group:
    """Spans that attend together, B of them, padded to T tokens over L positions."""

    batch: int
    tokens: int
    context: int
    take: torch.Tensor | None  # [B·T] into the packed tokens; None: all of them, in order
    slots: slice | torch.Tensor  # [B·L] into the pool
    mask: torch.Tensor | None  # additive, [B, 1, T or rep·T, L]; None: everything is visible


@dataclass(frozen=True, slots=True)
class Layout:
    """How the packed tokens of a pass split into groups, for one window and grouping."""

    groups: tuple[Group, ...]
    put: torch.Tensor | None  # [ΣT] into the groups' padded outputs; None: already in order


class PassPlan:
    """Where one pass reads and writes, for all layers.

    Attributes:
        positions: `[1, ΣT]`, the position of every packed token.
        slots: where the KV of the packed tokens goes, a slice of the pool or `[ΣT]`.
    """

    def __init__(
        self, spans: Sequence[Span], *, block_size: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._spans = spans
        self._block_size = block_size
        self._device = device
        self._dtype = dtype
        self._layouts: dict[tuple[int | None, int], Layout] = {}
        self._start = np.array([span.start for span in spans], dtype=np.int64)
        self._length = np.array([span.length for span in spans], dtype=np.int64)
        self._offset = np.cumsum(self._length) - self._length
        self._blocks = np.zeros((len(spans), max(len(span.blocks) for span in spans)), np.int64)
        for table, span in zip(self._blocks, spans, strict=True):
            table[: len(span.blocks)] = span.blocks
        owner = np.repeat(np.arange(len(spans)), self._length)
        position = np.arange(len(owner)) - (self._offset - self._start)[owner]
        self.positions = self._tensor(position)[None]
        self.slots = self._index(self._slots(owner, position))

    def layout(self, window: int | None, repeats: int) -> Layout:
        """The groups for layers that see `window` positions back (None: all of them).

        `repeats` is the number of query heads per key head.
        """
        layout = self._layouts.get((window, repeats))
        if layout is None:
            layout = self._layouts[window, repeats] = self._lay_out(window, repeats)
        return layout

    def _lay_out(self, window: int | None, repeats: int) -> Layout:
        first = np.zeros_like(self._start)
        if window is not None:
            np.maximum(self._start - window + 1, 0, out=first)
        context = self._start + self._length - first
        members = _partition(self._length.tolist(), context.tolist())
        groups = tuple(self._group(rows, first, window, repeats) for rows in members)
        if len(groups) == 1 and groups[0].take is None:
            return Layout(groups, None)
        put = np.empty(int(self._length.sum()), np.int64)
        base = 0
        for rows, group in zip(members, groups, strict=True):
            for i, row in enumerate(rows):
                offset, length = self._offset[row], self._length[row]
                put[offset : offset + length] = base + i * group.tokens + np.arange(length)
            base += group.batch * group.tokens
        return Layout(groups, self._tensor(put))

    def _group(self, rows: list[int], first: _Index, window: int | None, repeats: int) -> Group:
        start, length, low = self._start[rows, None], self._length[rows, None], first[rows, None]
        last = start + length - 1
        tokens, context = int(length.max()), int((last - low).max()) + 1
        # Padding repeats a span's last token and last position: those are always written, so
        # that what is masked away is at least finite.
        query = np.minimum(start + np.arange(tokens), last)  # [B, T] positions
        key = low + np.arange(context)  # [B, L] positions
        slots = self._slots(np.asarray(rows)[:, None], np.minimum(key, last))
        take = None
        if len(rows) != len(self._spans) or tokens * len(rows) != self._length.sum():
            take = self._tensor((query - start + self._offset[rows, None]).reshape(-1))
        return Group(
            batch=len(rows),
            tokens=tokens,
            context=context,
            take=take,
            slots=self._index(slots.reshape(-1)),
            mask=self._mask(query, key, window, repeats if tokens <= FOLD_LIMIT else 1),
        )

    def _mask(
        self, query: _Index, key: _Index, window: int | None, repeats: int
    ) -> torch.Tensor | None:
        hidden = key[:, None, :] > query[:, :, None]  # [B, T, L]
        if window is not None:
            hidden |= key[:, None, :] <= query[:, :, None] - window
        if not hidden.any():
            return None
        mask = torch.zeros(hidden.shape, dtype=self._dtype, device=self._device)
        mask.masked_fill_(torch.from_numpy(hidden).to(self._device), float("-inf"))
        return mask.repeat(1, repeats, 1)[:, None]

    def _slots(self, row: _Index, position: _Index) -> _Index:
        block = self._blocks[row, position // self._block_size]
        return block * self._block_size + position % self._block_size

    def _index(self, slots: _Index) -> slice | torch.Tensor:
        # A run of slots needs no gather: a slice of the pool is a view.
        low = int(slots[0])
        if slots[-1] - low == len(slots) - 1 and (np.diff(slots) == 1).all():
            return slice(low, low + len(slots))
        return self._tensor(slots)

    def _tensor(self, values: _Index) -> torch.Tensor:
        return torch.from_numpy(values).to(self._device)


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
