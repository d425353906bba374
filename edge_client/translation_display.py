"""Which words of a translation are on display, and how many were taken back.

Text that is translated again and again changes at its end. Words shown and replaced are flicker;
holding back the last few until they settle trades it for lag (Arivazhagan et al. 2020, mask-k).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile

from draftwire.errors import InvalidRequest

_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
"""Kana and Chinese characters, which are words of their own where no spaces stand."""

_WORD = re.compile(rf"\s*(?:[{_UNSPACED}]|[^\s{_UNSPACED}]+)")


def words_of(text: str) -> list[str]:
    """The words of a text, each with the space before it: joined they are the text.

    Space at either end is dropped. A kana or Chinese character is a word.
    """
    return _WORD.findall(text.strip())


class Display:
    """The words of the line that is being translated; the last `hold_back` are not shown.

    What is shown stays as long as the translation begins with it, even where one that became
    shorter would hold it back. `taken_back` counts the words replaced or removed, of all lines.
    Raises `InvalidRequest` for a negative number.
    """

    def __init__(self, hold_back: int = 0) -> None:
        if hold_back < 0:
            raise InvalidRequest(f"hold_back is {hold_back}, not ≥ 0")
        self.words: list[str] = []
        self.taken_back = 0
        self._hold_back = hold_back

    @property
    def text(self) -> str:
        """What is on display."""
        return "".join(self.words)

    def show(self, text: str, *, complete: bool, final: bool = False) -> bool:
        """Show a translation, or as much of one as there is; returns whether anything changed.

        The last word of an incomplete one may be half a word and is never shown. While it only
        repeats the beginning of what is shown, that stays. A final one is shown to its end.
        """
        words = words_of(text)
        same = _same(words, self.words)
        if not complete and same >= len(words) - 1:
            return False
        held = 0 if final else max(self._hold_back, int(not complete))
        words = words[: max(len(words) - held, same)]
        changed = words != self.words
        self.taken_back += len(self.words) - same
        self.words = words
        return changed

    def clear(self) -> None:
        """Begin a line: the one before stays as it is."""
        self.words = []


def _same(words: Sequence[str], others: Sequence[str]) -> int:
    """Length of the longest common prefix."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(words, others)))  # noqa: B905
