"""What a pass feeds, and where in the pool each token of it belongs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Index = npt.NDArray[np.int64]


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


class PackedSpans:
    """The tokens of B spans in one row, ΣT of them, on the host.

    Attributes:
        start, length: `[B]`, the spans'.
        offset: `[B]`, where each begins in the row.
        blocks: `[B, most]`, the blocks of each, filled up with zeros.
        positions: `[ΣT]`.
    """

    def __init__(self, spans: Sequence[Span], block_size: int) -> None:
        self._block_size = block_size
        self.start = np.array([span.start for span in spans], dtype=np.int64)
        self.length = np.array([span.length for span in spans], dtype=np.int64)
        self.offset = np.cumsum(self.length) - self.length
        self.blocks = np.zeros((len(spans), max(len(span.blocks) for span in spans)), np.int64)
        for table, span in zip(self.blocks, spans, strict=True):
            table[: len(span.blocks)] = span.blocks
        self._owner = np.repeat(np.arange(len(spans)), self.length)
        self.positions = np.arange(len(self._owner)) - (self.offset - self.start)[self._owner]

    def __len__(self) -> int:
        return len(self.start)

    @property
    def tokens(self) -> int:
        """ΣT."""
        return len(self.positions)

    @property
    def slots(self) -> Index:
        """Where the KV of each token goes, `[ΣT]`."""
        return self.slots_of(self._owner, self.positions)

    @property
    def unwritten(self) -> Index:
        """Slots behind the last token of every span whose last block is begun in this pass."""
        end = self.start + self.length
        room = -end % self._block_size
        room[self.length < self._block_size - room] = 0
        span = np.repeat(np.arange(len(room)), room)
        position = np.arange(len(span)) + (end + room - np.cumsum(room))[span]
        return self.slots_of(span, position)

    def slots_of(self, span: Index, position: Index) -> Index:
        """Slots of positions of spans; the two broadcast."""
        block = self.blocks[span, position // self._block_size]
        return block * self._block_size + position % self._block_size
