"""Where a text ends because it holds a stop string. The one definition, for both sides.

The text is the bytes of its tokens, one after the other: a stop string may begin in one token and
end in another, and a token may hold a part of a character. Bytes are as good as characters: UTF-8
never holds one character's bytes in the middle of others.
"""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Sequence


class StopSearch:
    """Follows an output token by token, and finds the first stop string that is completed.

    Of several completed by the same token, the one that begins first counts. Nothing is looked
    for in the text of the first `min_tokens` tokens. After the end nothing is fed any more.
    """

    def __init__(self, strings: Sequence[str], min_tokens: int = 0) -> None:
        self._strings = [text.encode() for text in strings]
        self._keep = max(map(len, self._strings), default=1) - 1
        self._min_tokens = min_tokens
        self._tail = b""  # what a stop string could begin in
        self._ends: list[int] = []  # bytes of the text after each token
        self.found: int | None = None
        """Bytes before the stop string, once it is there."""

    def fork(self) -> StopSearch:
        """Another one that goes on from here."""
        other = copy.copy(self)
        other._ends = self._ends.copy()
        return other

    def feed(self, piece: bytes) -> bool:
        """The next token has these bytes. Whether it completes a stop string."""
        end = (self._ends[-1] if self._ends else 0) + len(piece)
        self._ends.append(end)
        if len(self._ends) <= self._min_tokens:
            return False
        window = self._tail + piece
        places = [at for text in self._strings if (at := window.find(text)) >= 0]
        if places:
            self.found = end - len(window) + min(places)
            return True
        self._tail = window[-self._keep :] if self._keep else b""
        return False

    @property
    def decided(self) -> int:
        """Tokens that are in the text whatever comes: none of their bytes may belong to a stop."""
        if self.found is not None:
            return bisect_right(self._ends, self.found)
        held = max(map(self._begun, self._strings), default=0)
        return bisect_right(self._ends, self._ends[-1] - held) if held else len(self._ends)

    @property
    def cut(self) -> int:
        """Bytes of the first token not `decided` that stand before the stop string."""
        if self.found is None:
            return 0
        kept = self.decided
        return self.found - (self._ends[kept - 1] if kept else 0)

    def _begun(self, text: bytes) -> int:
        """How much of a stop string the text ends with, bytes."""
        for count in range(min(len(self._tail), len(text) - 1), 0, -1):
            if self._tail.endswith(text[:count]):
                return count
        return 0
