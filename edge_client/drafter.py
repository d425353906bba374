"""The protocols between a session and the models of the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from draftwire.adjust import Adjuster
from draftwire.types import CompactDistribution, SamplingParams, Tokens, VerifyMode


@dataclass(frozen=True, slots=True)
class Proposal:
    """A drafted token and how likely it is to hold, in [0, 1]: the draft model's probability of it.

    In `rejection` mode `q` is the distribution it was drawn from; None: one-hot at the token. The
    confidence is then a function of q alone. Whether a draft is sent may depend on what it was
    drawn from, never on what was drawn: else the output would not be distributed as p.
    """

    token: int
    confidence: float
    q: CompactDistribution | None = None


class Drafter(Protocol):
    """A draft model with a context of its own.

    One session uses a drafter at a time. Calls are made in order, each awaited before the next.
    """

    async def begin(
        self,
        sampling: SamplingParams,
        context: Tokens,
        adjuster: Adjuster | None = None,
        mode: VerifyMode = VerifyMode.MATCH,
    ) -> int:
        """Start a generation: drafts are drawn with these parameters and their seed.

        In `rejection` mode they state what they were drawn from, else they are the guesses at the
        target's own token that `match` mode wants.
        The drafter owns the `adjuster`, if there is one, and changes its logits by it. Where that
        leaves one token only, it is proposed at no cost, and where it leaves none, nothing.
        Returns how many leading tokens of `context` the drafter's own context shares, for the
        `keep` of the first draft.
        """
        ...

    async def draft(self, keep: int, tokens: Tokens) -> Proposal | None:
        """Truncate the context to its first `keep` tokens, append `tokens`, propose the next.

        None where it has nothing to propose: it may have after another token. A proposal is
        appended to the context. Rolling back is what a smaller `keep` does.
        Raises `CannotRollBack` if the model refuses to.
        """
        ...

    @property
    def max_context(self) -> int:
        """Longest context, tokens: positions from here on can't be drafted."""
        ...

    async def close(self) -> None:
        """Free the model's context."""
        ...


class Tokenizer(Protocol):
    """Text to token ids and back, in the target's vocabulary."""

    @property
    def fingerprint(self) -> bytes:
        """Vocabulary fingerprint (`draftwire.vocab`), 32 bytes."""
        ...

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens after which the draft model has nothing to say."""
        ...

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt, with the beginning token the model wants; specials parsed."""
        ...

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of a conversation in the model's chat template, ready for the answer.

        Messages hold `role` and `content`. Raises `InvalidRequest` if there is no template.
        """
        ...

    def piece(self, token: int) -> bytes:
        """The token's text as bytes, possibly part of a character; empty for control tokens."""
        ...
