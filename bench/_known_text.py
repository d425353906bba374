"""A drafter without a model: it knows the texts, and gets some of them wrong on purpose."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

from draftwire.adjust import Adjuster
from draftwire.types import SamplingParams, Tokens, VerifyMode, common_prefix
from edge_client.drafter import Proposal


@dataclass(frozen=True, slots=True)
class KnownText:
    """What the target says after `prompt` under `sampling`."""

    prompt: Tokens
    text: Tokens
    sampling: SamplingParams

    @property
    def whole(self) -> list[int]:
        """Prompt and text."""
        return [*self.prompt, *self.text]


class KnownTextDrafter:
    """`Drafter` of known texts, of which a seeded `wrong` share of tokens is replaced.

    Past the end of a text, or where it knows none, all drafts are token 0.
    """

    max_context = 1 << 20

    def __init__(self, texts: Sequence[KnownText], *, wrong: float = 0.0, seed: int = 0) -> None:
        self._texts = texts
        self._wrong = wrong
        self._draw = random.Random(seed)
        self._script: list[int] = []
        self._context: list[int] = []

    async def begin(
        self,
        sampling: SamplingParams,
        context: Tokens,
        adjuster: Adjuster | None = None,  # noqa: ARG002
        mode: VerifyMode = VerifyMode.MATCH,  # noqa: ARG002
    ) -> int:
        """Find the text that `context` is the beginning of; how much of it the own one shares."""
        known = (text.whole for text in self._texts if text.sampling == sampling)
        length = len(context)
        self._script = next((w for w in known if w[:length] == list(context)), [])
        return common_prefix(self._context, context)

    async def draft(self, keep: int, tokens: Tokens) -> Proposal:
        """The text's next token, or the one beside it."""
        self._context[keep:] = tokens
        await asyncio.sleep(0)
        at = len(self._context)
        token = self._script[at] if at < len(self._script) else 0
        if self._draw.random() < self._wrong:
            token = token - 1 if token else 1
        self._context.append(token)
        return Proposal(token, 1 - self._wrong)

    async def close(self) -> None:
        """Forget the context."""
        self._context.clear()
