"""A bias toward the translation before: less flicker, and no longer the target's own text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from draftwire.errors import InvalidRequest
from draftwire.types import MAX_TOP_LOGPROBS, Tokens
from edge_client.results import Token
from edge_client.text import Pieces, TextStream
from edge_client.translation_display import words_of


class Stability:
    """Holds to tokens of the translation before while the target's preference is small.

    As long as the output repeats the one before, its next token stands `bonus` nats higher than
    the target says. The target's own log-probabilities decide that here, at the first difference:
    what is held is appended to the prompt and the target goes on from there. A token that is not
    among the likeliest 20 is never held. Lossy by nature, and for greedy decoding: a bonus of 0
    changes nothing.

    Raises `InvalidRequest` for a negative bonus.
    """

    def __init__(self, bonus: float) -> None:
        if not 0 <= bonus < math.inf:
            raise InvalidRequest(f"stability is {bonus}, not ≥ 0")
        self.bonus = bonus

    @property
    def top_logprobs(self) -> int:
        """How many log-probabilities of each token it wants to be told."""
        return MAX_TOP_LOGPROBS if self.bonus else 0

    def holds(self, kept: int, token: Token, before: Tokens) -> bool:
        """Whether `before[kept]` is to stand in the place of a token, all before it being equal."""
        told = token.logprobs
        if not self.bonus or kept >= len(before) or token.id == before[kept] or told is None:
            return False
        scores = dict(zip(told.top_tokens, told.top_logprobs, strict=True))
        return told.logprob - scores.get(before[kept], -math.inf) < self.bonus


def settled_tokens(tokens: Sequence[int], pieces: Pieces, hold_back: int) -> list[int]:
    """The leading tokens that make up the text without its last words, `hold_back` or one.

    What ended there usually goes on otherwise when there is more source: it is not held to.
    """
    stream, text, lengths = TextStream(pieces), "", []
    for token in tokens:
        text += stream.feed([token])
        lengths.append(len(text.lstrip()))
    words = words_of(text)
    length = sum(map(len, words[: max(0, len(words) - max(1, hold_back))]))
    return [token for token, end in zip(tokens, lengths, strict=True) if end <= length]
