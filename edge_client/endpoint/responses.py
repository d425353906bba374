"""Answers in the shapes of OpenAI's API, whole and in chunks."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from draftwire.types import FinishReason, ModelCard
from edge_client.drafter import Tokenizer
from edge_client.endpoint.logprobs import chat_logprobs, text_logprobs
from edge_client.results import Delta, Summary, Token

_REASONS = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


class Shape(Protocol):
    """How one kind of answer looks. Each method gives an entry of `choices`, or None for none."""

    prefix: str
    whole_object: str
    chunk_object: str

    def opening(self, index: int) -> dict[str, Any] | None:
        """The first chunk of an output."""
        ...

    def piece(self, index: int, delta: Delta) -> dict[str, Any] | None:
        """A chunk of an output."""
        ...

    def closing(self, index: int, summary: Summary) -> dict[str, Any]:
        """The last chunk of an output."""
        ...

    def whole(self, index: int, tokens: Sequence[Token], summary: Summary) -> dict[str, Any]:
        """An output."""
        ...


class ChatShape:
    """`chat.completion`."""

    prefix, whole_object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, tokenizer: Tokenizer, *, logprobs: bool) -> None:
        self._tokenizer = tokenizer
        self._logprobs = logprobs

    def opening(self, index: int) -> dict[str, Any] | None:
        """The role."""
        return _choice(index, {"delta": {"role": "assistant", "content": ""}})

    def piece(self, index: int, delta: Delta) -> dict[str, Any] | None:
        """What a verdict added."""
        told = self._told(delta.tokens)
        if not delta.text and not (told and told["content"]):
            return None
        return _choice(index, {"delta": {"content": delta.text}}, told)

    def closing(self, index: int, summary: Summary) -> dict[str, Any]:
        """Why it ended."""
        return _choice(index, {"delta": {}}, None, summary)

    def whole(self, index: int, tokens: Sequence[Token], summary: Summary) -> dict[str, Any]:
        """A message."""
        message = {"role": "assistant", "content": summary.text, "refusal": None}
        return _choice(index, {"message": message}, self._told(tokens), summary)

    def _told(self, tokens: Sequence[Token]) -> dict[str, Any] | None:
        if not self._logprobs:
            return None
        return {"content": chat_logprobs(self._tokenizer, tokens), "refusal": None}


class TextShape:
    """`text_completion`. Counts where each output's next token begins, so it serves one request."""

    prefix, whole_object, chunk_object = "cmpl", "text_completion", "text_completion"

    def __init__(self, tokenizer: Tokenizer, *, logprobs: bool) -> None:
        self._tokenizer = tokenizer
        self._logprobs = logprobs
        self._offsets: dict[int, int] = {}

    def opening(self, index: int) -> dict[str, Any] | None:  # noqa: ARG002
        """Nothing: the first chunk is a piece."""
        return None

    def piece(self, index: int, delta: Delta) -> dict[str, Any] | None:
        """What a verdict added."""
        told = self._told(index, delta.tokens)
        if not delta.text and not (told and told["tokens"]):
            return None
        return _choice(index, {"text": delta.text}, told)

    def closing(self, index: int, summary: Summary) -> dict[str, Any]:
        """Why it ended."""
        return _choice(index, {"text": ""}, None, summary)

    def whole(self, index: int, tokens: Sequence[Token], summary: Summary) -> dict[str, Any]:
        """A text."""
        return _choice(index, {"text": summary.text}, self._told(index, tokens), summary)

    def _told(self, index: int, tokens: Sequence[Token]) -> dict[str, list[Any]] | None:
        if not self._logprobs:
            return None
        offset = self._offsets.get(index, 0)
        told = text_logprobs(self._tokenizer, tokens, offset)
        self._offsets[index] = offset + sum(map(len, told["tokens"]))
        return told


def _choice(
    index: int,
    content: Mapping[str, Any],
    logprobs: Mapping[str, Any] | None = None,
    summary: Summary | None = None,
) -> dict[str, Any]:
    reason = _REASONS.get(summary.finish_reason) if summary else None
    return {"index": index, **content, "logprobs": logprobs, "finish_reason": reason}


class Envelope:
    """What all answers to one request share."""

    def __init__(self, shape: Shape, model: str, card: ModelCard) -> None:
        self._shape = shape
        self._head = {
            "id": f"{shape.prefix}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": f"fp_{card.target.digest.hex()[:12]}",
        }

    def whole(
        self, choices: Sequence[Mapping[str, Any]], summaries: Sequence[Summary], n: int
    ) -> dict[str, Any]:
        """The answer at once."""
        return {
            "object": self._shape.whole_object,
            **self._head,
            "choices": choices,
            "usage": usage(summaries, n),
            "draftwire": [figures(summary) for summary in summaries],
        }

    def chunk(self, choice: Mapping[str, Any], *, with_usage: bool) -> dict[str, Any]:
        """A part of an answer. `with_usage`, that is to be null."""
        usage = {"usage": None} if with_usage else {}
        return {"object": self._shape.chunk_object, **self._head, "choices": [choice], **usage}

    def last(self, summaries: Sequence[Summary], n: int) -> dict[str, Any]:
        """The chunk that tells what was used."""
        return {
            "object": self._shape.chunk_object,
            **self._head,
            "choices": [],
            "usage": usage(summaries, n),
            "draftwire": [figures(summary) for summary in summaries],
        }


def usage(summaries: Sequence[Summary], n: int) -> dict[str, Any]:
    """Tokens used, where every `n` outputs share a prompt, which counts once."""
    prompts = [summary.usage for summary in summaries[::n]]
    prompt = sum(one.prompt_tokens for one in prompts)
    completion = sum(len(summary.token_ids) for summary in summaries)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(one.cached_tokens for one in prompts)},
    }


def figures(summary: Summary) -> dict[str, Any]:
    """How a generation went. Beyond OpenAI's API: what splitting brought."""
    return {
        "seed": summary.seed,
        "lossy": summary.lossy,
        "tokens": len(summary.token_ids),
        "tokens_per_s": round(summary.tokens_per_s, 2),
        "rounds": summary.rounds,
        "drafted": summary.drafted,
        "accepted": summary.accepted,
        "alpha": round(summary.alpha, 4),
        "tau": round(summary.tau, 3),
        "k_mean": round(summary.k_mean, 2),
        "ttft_ms": round(summary.ttft_ms, 1),
        "tpot_ms": round(summary.tpot_ms, 2),
        "rtt_ms": round(summary.rtt_ms, 2),
        "streams": summary.streams,
    }
