"""Where the last tokens of a text stood before."""

from __future__ import annotations

from collections import defaultdict

from draftwire.types import Tokens

NGRAM = 3
"""Tokens that must agree before what followed them is proposed."""

_LONGEST = 32  # a longer agreement is not told from this
_LATEST = 16  # places looked at


class NgramIndex:
    """A text that is appended to and cut, and where each run of `ngram` tokens stands in it."""

    def __init__(self, tokens: Tokens = (), ngram: int = NGRAM) -> None:
        self.text: list[int] = []
        self._ngram = ngram
        self._followed: dict[tuple[int, ...], list[int]] = defaultdict(list)
        self.extend(tokens)

    def extend(self, tokens: Tokens) -> None:
        """The text goes on."""
        for token in tokens:
            at = len(self.text)
            if at >= self._ngram:
                self._followed[tuple(self.text[at - self._ngram :])].append(at)
            self.text.append(token)

    def truncate(self, length: int) -> None:
        """Only the first `length` tokens are left."""
        while len(self.text) > length:
            del self.text[-1]
            at = len(self.text)
            if at >= self._ngram:
                places = self._followed[tuple(self.text[at - self._ngram :])]
                places.pop()  # rising, so that the last is this one
                if not places:
                    del self._followed[tuple(self.text[at - self._ngram :])]

    def find(self, context: Tokens) -> tuple[int, int]:
        """Where the end of `context` stands in the text: the place after it, and how long it is.

        The longest agreement among the latest places, of equal ones the latest; (0, 0) for none.
        """
        best = (0, 0)
        if len(context) < self._ngram:
            return best
        places = self._followed.get(tuple(context[-self._ngram :]), ())
        for place in places[-_LATEST:]:
            length = agreement(self.text, place, context, _LONGEST)
            if length >= best[1]:
                best = place, length
        return best


def agreement(text: Tokens, place: int, context: Tokens, most: int) -> int:
    """How many tokens before `place` of a text end the context, too; at most `most`."""
    most, length = min(place, len(context), most), 0
    while length < most and text[place - 1 - length] == context[-1 - length]:
        length += 1
    return length
