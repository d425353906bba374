"""A table model that translates word by word, for tests of what follows a growing source."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from draftwire.testing.table import EOS, TableModel, TableTokenizer, table_pieces

VOCABULARY = 600
TOKENIZER = TableTokenizer(VOCABULARY)
END = TOKENIZER.encode("\nassistant:")
(COLON,) = TOKENIZER.encode(":")
WORDS = [
    t for t, piece in enumerate(table_pieces(VOCABULARY)) if piece[:1] == b" " and len(piece) > 4
]
"""Tokens that are a word."""

GAP = 1.0
"""By how many nats the target prefers a word to what it was before the source went on."""


def sentence(*words: int) -> str:
    """A caption of words by their number."""
    return "".join(TOKENIZER.piece(WORDS[word]).decode() for word in words).strip()


class Interpreter(TableModel):
    """Each word of the source becomes one, which also depends on the next: the last one may change.

    A drafter's model is `wrong_each`, the word at every so many places of a text.
    """

    def __init__(self, wrong_each: int = 0) -> None:
        super().__init__(vocabulary_size=VOCABULARY, states=1)
        self._texts: dict[int, tuple[int, ...]] = {self.initial: ()}
        self._wrong_each = wrong_each

    def extend(self, state: int, token: int) -> int:
        after = super().extend(state, token)
        self._texts[after] = (*self._texts[state], token)
        return after

    def best(self, state: int) -> int:
        return self._choices(state)[0]

    def best_probability(self, state: int) -> float:  # noqa: ARG002
        return 0.9

    def logits(self, state: int) -> NDArray[np.float32]:
        row = np.full(VOCABULARY, -20, np.float32)
        best, other = self._choices(state)
        row[other] = 5 - GAP
        row[best] = 5
        return row

    def _choices(self, state: int) -> tuple[int, int]:
        """The next word, and what it would be if the source ended there."""
        text = self._texts[state]
        ends = [at for at in range(len(text)) if list(text[at : at + len(END)]) == END]
        if not ends:
            return WORDS[0], WORDS[1]
        end = ends[-1]
        start = end - text[:end][::-1].index(COLON)
        source, at = text[start:end], len(text) - end - len(END)
        if at >= len(source):
            return EOS, WORDS[2]
        following = source[at + 1] if at + 1 < len(source) else EOS
        wrong = bool(self._wrong_each) and at % self._wrong_each == self._wrong_each - 1
        return _word(source[at], following, wrong), _word(source[at], EOS, wrong)


def _word(token: int, following: int, wrong: bool) -> int:
    return WORDS[(7 * token + following % 3 + 11 * wrong) % len(WORDS)]
