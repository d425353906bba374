"""The protocol between the engine and a target model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from draftwire.types import ModelCard, SamplingParams, Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One session's share of a pass.

    `tokens` are fed at positions `start`, `start + 1`, …; KV of positions below `start` is held
    in the session's `blocks` and that of `tokens` goes there: position t lives in slot
    `t % block_size` of block `blocks[t // block_size]`. The last `drafts` of `tokens` are
    unverified. With `judge` false the row only fills KV (a chunk of a prompt).
    """

    tokens: Tokens
    start: int
    blocks: Sequence[int]
    drafts: int = 0
    judge: bool = True
    sampling: SamplingParams = SamplingParams()


@dataclass(frozen=True, slots=True)
class Judgement:
    """The target's view of a row: `accepted` leading drafts hold, then comes `token`.

    `token` is the correction where `accepted < drafts`, else the bonus token.
    """

    accepted: int
    token: int


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

    def verify(self, rows: Sequence[Row]) -> list[Judgement | None]:
        """Run one pass over all rows; a judgement per row, None where `judge` is false.

        Writes the KV of every token fed. Slots of rejected drafts hold garbage afterwards,
        which the engine overwrites before any pass reads it.
        """
        ...

    def close(self) -> None:
        """Free weights and KV."""
        ...
