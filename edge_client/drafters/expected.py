"""A text that is expected, and where in it the output stands."""

from __future__ import annotations

from draftwire.types import Tokens
from edge_client.drafters.ngrams import NgramIndex, agreement

_NGRAM = 2  # tokens that must agree far from where the difference was
_NEAR = 8  # tokens by which what was replaced and its replacement may differ in length
_LONGEST_NAME = 8  # tokens whose replacement is expected again
_FARTHEST = 64  # tokens that the output may have left out
_SURE = 32  # an agreement from the beginning counts as so many tokens more


class ExpectedText:
    """Follows an output through the text that was expected.

    From its beginning; after a difference from the nearest place where the two agree again. What
    the output has instead is then expected further on, too: a name that changed once changes
    everywhere. Where fewer than `least` tokens agree after a difference, the place is not known.
    """

    def __init__(self, tokens: Tokens, *, least: int = 1) -> None:
        self._least = least
        self._index = NgramIndex(tokens, _NGRAM)
        self._aligned = 0  # leading tokens that output and text share
        self._differed = -_SURE  # where they differed last

    @property
    def tokens(self) -> list[int]:
        """The text; as far as the output is known, that, once the two agree again."""
        return self._index.text

    def truncate(self, length: int) -> None:
        """Only the first `length` tokens of the output are left."""
        self._aligned = max(0, min(self._aligned, length))

    def find(self, output: Tokens) -> tuple[int, int]:
        """Where the text goes on after `output`, and how many tokens agree before that place.

        (0, 0) for nowhere. The place may be the text's end.
        """
        left, end = self._align(output), len(output)
        if left == end:
            return left, left - self._differed
        near = range(max(left + 1, end - _NEAR), min(len(self.tokens), end + _NEAR) + 1)
        found = [(agreement(self.tokens, at, output, min(at, end) - left), at) for at in near]
        agreed, place = max(found, key=lambda it: (it[0], -abs(it[1] - end)), default=(0, 0))
        if agreed < self._least:
            place, agreed = self._index.find(output)
        return (place, agreed) if agreed >= self._least else (0, 0)

    def revise(self, output: Tokens) -> None:
        """Where the output has come back to the text after a difference, correct that.

        And the rest of it alike, if some tokens stand in the place of some others.
        """
        left = self._align(output)
        if left == len(output):
            return
        place, agreed = self.find(output)
        agreed = min(agreed, len(output) - left, place - left)
        if agreed < _NGRAM or place - agreed - left > _FARTHEST:
            return
        old, new = self.tokens[left : place - agreed], list(output[left : len(output) - agreed])
        rest = self.tokens[place:]
        if 0 < len(old) <= _LONGEST_NAME and 0 < len(new) <= _LONGEST_NAME:
            rest = _replaced(rest, old, new)
        self._index = NgramIndex([*output, *rest], _NGRAM)
        self._aligned, self._differed = len(output), left

    def _align(self, output: Tokens) -> int:
        """See how far output and text agree from their beginning."""
        tokens = self.tokens
        while self._aligned < min(len(output), len(tokens)) and (
            output[self._aligned] == tokens[self._aligned]
        ):
            self._aligned += 1
        return self._aligned


def _replaced(tokens: list[int], old: list[int], new: list[int]) -> list[int]:
    """`tokens` with every `old` in them replaced."""
    result: list[int] = []
    at = 0
    while at < len(tokens):
        if tokens[at : at + len(old)] == old:
            result += new
            at += len(old)
        else:
            result.append(tokens[at])
            at += 1
    return result
