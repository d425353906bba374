"""One caption translated, with the translation before it as the prediction."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from draftwire.errors import InvalidRequest
from draftwire.types import FinishReason
from edge_client.drafters.ngrams import NgramIndex
from edge_client.options import DEFAULT_MAX_TOKENS
from edge_client.results import Delta
from edge_client.session import Session
from edge_client.text import TextStream
from edge_client.translation_stability import Stability

if TYPE_CHECKING:
    from edge_client.client import AsyncEdgeClient
    from edge_client.stream import AsyncStream


class TranslationRun:
    """What the target makes of a prompt, `tokens` and `text` so far; `passes` it took.

    `before` is what it is expected to be, `held` the part of that which the stability bias is for.
    Afterwards `ended` says whether it is complete: it is not if it was cancelled.
    """

    def __init__(
        self,
        client: AsyncEdgeClient,
        session: Session,
        prompt: Sequence[int],
        *,
        before: Sequence[int],
        held: Sequence[int],
        stability: Stability,
        options: Mapping[str, Any],
    ) -> None:
        self.tokens: list[int] = []
        self.text = ""
        self.passes = 0
        self.ended = False
        self._client = client
        self._session = session
        self._prompt = prompt
        self._before = before
        self._held = held
        self._stability = stability
        self._options = options
        self._cancelled = False
        self._stream: AsyncStream | None = None

    def cancel(self) -> None:
        """End it with what there is."""
        self._cancelled = True
        if self._stream is not None:
            self._stream.cancel()

    async def progress(self) -> AsyncGenerator[None]:
        """Translate, pausing whenever there is more. Raises what the generation does."""
        while not self.ended and not self._cancelled:
            kept = len(self.tokens)
            async with self._generate(kept) as self._stream:
                held = False
                async for delta in self._stream:
                    if held:  # what was still under way
                        continue
                    if held := self._take(delta):
                        self._stream.cancel()
                    yield
            summary = self._stream.summary
            self.passes += summary.usage.passes
            self.ended = not held and summary.finish_reason is not FinishReason.CANCELLED
            if not (self.ended or held or self._cancelled):
                raise InvalidRequest("the client was closed during a translation")

    def expected(self) -> list[int]:
        """What the next translation of this line is expected to be.

        This one without its end, which is expected to move; or as far as it got, and then what
        followed there in the one before.
        """
        tokens = [token for token in self.tokens if token not in self._session.target_ends]
        if self.ended:
            return tokens
        place, length = NgramIndex(self._before, 2).find(tokens)
        return [*tokens, *self._before[place if length else len(tokens) :]]

    def _generate(self, kept: int) -> AsyncStream:
        """The generation after the first `kept` tokens."""
        most = self._options.get("max_tokens", DEFAULT_MAX_TOKENS)
        left = {"max_tokens": max(1, most - kept)} if most else {}
        return self._client.generate(
            [*self._prompt, *self.tokens],
            session=self._session,
            prediction=self._before[kept:],
            top_logprobs=self._stability.top_logprobs,
            show_drafts=False,  # whatever the client's file says: what came can't be taken back
            offline_tokens=0,
            **{**self._options, **left},
        )

    def _take(self, delta: Delta) -> bool:
        """Add what came, up to a place where a token held to stands instead of the target's."""
        for token in delta.tokens:
            at, held = len(self.tokens), self._held
            if self.tokens == held[:at] and self._stability.holds(at, token, held):
                self.tokens.append(held[at])
                self.text = TextStream(self._client.tokenizer).feed(self.tokens)
                return True
            self.tokens.append(token.id)
        self.text += delta.text
        return False
