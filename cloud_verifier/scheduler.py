"""What the next pass computes.

Chunks of prompts and drafts are the same thing, tokens not yet computed, and share one budget.
Owners take turns, and of one owner's sessions the longest waiting comes first; whoever got a pass
queues again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from cloud_verifier.sessions import Session


@dataclass(frozen=True, slots=True)
class Share:
    """One session's part of a pass: committed tokens it owes to its KV, then drafts to judge."""

    session: Session
    owed: int
    drafts: int
    judge: bool

    @property
    def end(self) -> int:
        """Position after the last token fed."""
        return self.session.kv.length + self.owed + self.drafts

    @property
    def tokens(self) -> int:
        """Tokens fed."""
        return self.owed + self.drafts


def schedule(
    sessions: Iterable[Session],
    *,
    budget: int,
    chunk: int,
    max_rows: int,
    grant: Callable[[Share, Sequence[Share]], bool],
) -> list[Share]:
    """Divide `budget` tokens among the sessions that are ready.

    A session judges up to `max_rows` − 1 drafts, and no more than its allowance. Prompts take at
    most `chunk` tokens of the pass together; one that does not fit goes in parts, of which only
    the last is judged. `grant` gives a share its KV blocks beside the shares there are; what it
    denies waits for another pass.
    """
    shares: list[Share] = []
    for session in _in_turn(sessions):
        owed = len(session.tokens) - session.kv.length
        is_prompt = owed > max_rows
        fits = min(budget, chunk) if is_prompt else budget
        if owed > fits:
            share = Share(session, owed=fits, drafts=0, judge=False)
        else:
            drafts = min(len(session.pending), max_rows - 1, session.allowance, session.room)
            share = Share(session, owed=owed, drafts=min(drafts, budget - owed), judge=True)
        if share.tokens and grant(share, shares):
            shares.append(share)
            budget -= share.tokens
            chunk -= share.owed if is_prompt else 0
    return shares


def _in_turn(sessions: Iterable[Session]) -> Iterator[Session]:
    """One session of each owner, then another of each, longest waiting first."""
    queues: dict[str, list[Session]] = defaultdict(list)
    for session in sorted(sessions, key=lambda s: s.queued_at):
        queues[session.owner].append(session)
    for turn in zip_longest(*queues.values()):
        yield from (session for session in turn if session is not None)


class ChunkSize:
    """How many prompt tokens join a pass that other sessions wait for.

    Steers passes with prompt tokens toward `stretch` times the usual pass without any: larger
    chunks would hold up everyone's round, smaller ones the prompt.
    """

    def __init__(self, *, smallest: int = 16, largest: int = 512, stretch: float = 1.6) -> None:
        self._smallest = smallest
        self._largest = largest
        self._stretch = stretch
        self._usual_s = 0.0
        self._size = float(2 * smallest)

    @property
    def size(self) -> int:
        """Prompt tokens for the next pass that others wait for."""
        return round(self._size)

    def ran(self, prompt_tokens: int, seconds: float) -> None:
        """Learn from a pass in which rounds took part, with that many prompt tokens beside them."""
        if not prompt_tokens:
            self._usual_s += (0.2 if self._usual_s else 1.0) * (seconds - self._usual_s)
        elif self._usual_s and seconds:
            wanted = prompt_tokens * self._stretch * self._usual_s / seconds
            step = min(max(wanted, 0.7 * self._size), 1.2 * self._size)
            self._size = min(max(step, self._smallest), self._largest)
