"""The protocol between the engine and a target model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from draftwire.adjust import Adjuster, Adjustment
from draftwire.grammar import GrammarCompiler
from draftwire.types import (
    CompactDistribution,
    ModelCard,
    SamplingParams,
    TokenLogprobs,
    Tokens,
    VerifyMode,
)

STOP_STRINGS = "stop_strings"
"""Feature of a target that can tell the text of its tokens."""

GRAMMAR = "grammar"
"""Feature of a target whose output can be kept within a grammar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One session's share of a pass.

    `tokens` are fed at positions `start`, `start + 1`, …; KV of positions below `start` is held
    in the session's `blocks` and that of `tokens` goes there: position t lives in slot
    `t % block_size` of block `blocks[t // block_size]`. The last `drafts` of `tokens` are
    unverified. With `judge` false the row only fills KV (a chunk of a prompt).

    `adjuster` has the committed text, where raw logits are to be changed. `logprobs` is how many
    log-probabilities each committed token comes with: its own and those of the most likely others.
    `q` is what each draft was drawn from; None, or no `q` at all: one-hot at the draft.
    """

    tokens: Tokens
    start: int
    blocks: Sequence[int]
    drafts: int = 0
    judge: bool = True
    sampling: SamplingParams = SamplingParams()
    adjuster: Adjuster | None = None
    logprobs: int = 0
    mode: VerifyMode = VerifyMode.MATCH
    q: Sequence[CompactDistribution | None] = ()

    @property
    def end(self) -> int:
        """Position after the last token fed."""
        return self.start + len(self.tokens)

    @property
    def drafted(self) -> Tokens:
        """The drafts."""
        return self.tokens[len(self.tokens) - self.drafts :]

    @property
    def stated(self) -> Sequence[CompactDistribution | None]:
        """`q`, one for each draft."""
        return self.q or (None,) * self.drafts

    @property
    def positions(self) -> range:
        """Positions that the row's logits are for: those of its drafts and the one after."""
        return range(self.end - self.drafts, self.end + 1)

    @property
    def adjustments(self) -> Sequence[Adjustment | None]:
        """What changes the raw logits at each of `positions`."""
        if self.adjuster is None:
            return (None,) * (self.drafts + 1)
        return self.adjuster.along(self.drafted)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The target's view of a row: `accepted` leading drafts hold, then comes `token`.

    `token` is the correction where `accepted < drafts`, else the bonus token. `logprobs` are
    those of the accepted drafts and of `token`, if asked for: of the model's own distribution,
    before sampling parameters.
    """

    accepted: int
    token: int
    logprobs: Sequence[TokenLogprobs] = ()


class TargetModel(Protocol):
    """A target: weights, and KV storage addressed by block.

    Used from one thread at a time. Passes are not required to be bitwise independent of their
    neighbours; see the README on ties.
    """

    @property
    def card(self) -> ModelCard:
        """What is served: identity, vocabulary and limits."""
        ...

    @property
    def block_size(self) -> int:
        """Positions a KV block holds."""
        ...

    @property
    def num_blocks(self) -> int:
        """KV blocks there are."""
        ...

    def piece(self, token: int) -> bytes:
        """The token's text as bytes, possibly part of a character; empty for control tokens.

        Only asked where the card's features name `STOP_STRINGS`.
        """
        ...

    @property
    def grammars(self) -> GrammarCompiler | None:
        """Compiles grammars for its vocabulary; None unless the card's features name `GRAMMAR`."""
        ...

    def verify(self, rows: Sequence[Row]) -> list[Judgement | None]:
        """Run one pass over all rows; a judgement per row, None where `judge` is false.

        Writes the KV of every token fed. Slots of rejected drafts hold garbage afterwards,
        which the engine overwrites before any pass reads it.
        """
        ...

    def close(self) -> None:
        """Free weights and KV."""
        ...
