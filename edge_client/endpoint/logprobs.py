"""Log-probabilities in the two forms that OpenAI's API has for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from draftwire.types import TokenLogprobs
from edge_client.drafter import Tokenizer
from edge_client.results import Token

_LEAST = -9999.0
"""Stands for a probability of 0, whose logarithm JSON can't say."""


def chat_logprobs(tokenizer: Tokenizer, tokens: Sequence[Token]) -> list[dict[str, Any]]:
    """Of each token that has a text, in the form of chat completions."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        piece = tokenizer.piece(token)
        text = piece.decode(errors="replace")
        return {"token": text, "bytes": list(piece), "logprob": max(_LEAST, logprob)}

    return [
        entry(token, told.logprob)
        | {
            "top_logprobs": [
                entry(*one) for one in zip(told.top_tokens, told.top_logprobs, strict=True)
            ]
        }
        for token, told in _told(tokenizer, tokens)
    ]


def text_logprobs(
    tokenizer: Tokenizer, tokens: Sequence[Token], offset: int = 0
) -> dict[str, list[Any]]:
    """Of each token that has a text, in the form of completions.

    `offset` is where in the output the first one begins, characters. Alternatives are keyed by
    their text, and of several with the same one the likeliest is told.
    """
    lists: dict[str, list[Any]] = {
        name: [] for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    }
    for token, told in _told(tokenizer, tokens):
        text = _text(tokenizer, token)
        top = zip(told.top_tokens, told.top_logprobs, strict=True)
        lists["tokens"].append(text)
        lists["token_logprobs"].append(max(_LEAST, told.logprob))
        lists["top_logprobs"].append(
            {_text(tokenizer, one): max(_LEAST, value) for one, value in reversed([*top])}
        )
        lists["text_offset"].append(offset)
        offset += len(text)
    return lists


def _told(tokenizer: Tokenizer, tokens: Sequence[Token]) -> Iterator[tuple[int, TokenLogprobs]]:
    """Tokens and what was told of them, without those that have no text, like the end token."""
    for token in tokens:
        if token.logprobs is not None and tokenizer.piece(token.id):
            yield token.id, token.logprobs


def _text(tokenizer: Tokenizer, token: int) -> str:
    return tokenizer.piece(token).decode(errors="replace")
