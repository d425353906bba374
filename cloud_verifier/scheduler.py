"""What the next pass computes.

Chunks of prompts and drafts are the same thing, tokens not yet computed, and share one budget.
Owners take turns, and of one owner's sessions the longest waiting comes first; whoever got a pass
queues again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from cloud_verifier.sessions import Session
from cloud_verifier.target import Row


@dataclass(frozen=True, slots=True)
class Share:
    """One session's part of a pass: committed tokens it owes to its KV, then drafts to judge."""

    session: Session
    owed: int
    drafts: int
    judge: bool
    prompt: bool

    @property
    def end(self) -> int:
        """Position after the last token fed."""
        return self.session.kv.length + self.owed + self.drafts

    @property
    def tokens(self) -> int:
        """Tokens fed."""
        return self.owed + self.drafts

    @property
    def row(self) -> Row:
        """What the target is given for it."""
        session, table = self.session, self.session.kv
        owed = session.tokens[table.length : table.length + self.owed]
        return Row(
            tokens=owed + session.pending[: self.drafts],
            start=table.length,
            blocks=table.blocks,
            drafts=self.drafts,
            judge=self.judge,
            sampling=session.sampling,
            adjuster=session.adjuster,
            logprobs=session.logprobs,
            mode=session.mode,
            q=session.stated[: self.drafts],
        )


def schedule(
    sessions: Collection[Session],
    *,
    budget: int,
    chunk: int,
    max_rows: int,
    grant: Callable[[Share, Sequence[Share]], bool],
) -> list[Share]:
    """Divide `budget` tokens among those of the sessions in flight that are ready.

    A session judges up to `max_rows` − 1 drafts, and no more than its allowance. Prompts take at
    most `chunk` tokens of the pass together; one that does not fit goes in parts, of which only
    the last is judged. `grant` gives a share its KV blocks beside the shares there are; what it
    denies waits for another pass.
    """
    shares: list[Share] = []
    for session in _in_turn(sessions):
        owed, prompt = session.owed, session.in_prompt
        fits = min(budget, chunk) if prompt else budget
        if owed > fits:
            share = Share(session, owed=fits, drafts=0, judge=False, prompt=prompt)
        else:
            drafts = min(len(session.pending), max_rows - 1, session.allowance.drafts, session.room)
            drafts = min(drafts, budget - owed)
            share = Share(session, owed=owed, drafts=drafts, judge=True, prompt=prompt)
        if share.tokens and grant(share, shares):
            shares.append(share)
            budget -= share.tokens
            chunk -= share.owed if prompt else 0
    return shares


def _in_turn(sessions: Iterable[Session]) -> Iterator[Session]:
    """One ready session of each owner, then another of each.

    Owners go by when one of their sessions was last served, sessions by how long they wait.
    """
    queues: dict[str, list[Session]] = defaultdict(list)
    served_at: dict[str, float] = defaultdict(float)
    for session in sorted(sessions, key=lambda s: s.queued_at):
        served_at[session.owner] = max(served_at[session.owner], session.served_at)
        if session.ready:
            queues[session.owner].append(session)
    owners = sorted(queues, key=lambda owner: served_at[owner])
    for turn in zip_longest(*(queues[owner] for owner in owners)):
        yield from (session for session in turn if session is not None)


class ChunkSize:
    """How many prompt tokens join a pass that other sessions wait for.

    Steers passes with prompt tokens toward `stretch` times the usual pass without any: larger
    chunks would hold up everyone's round, smaller ones the prompt. Those beside rounds and those
    of prompts alone, which a round that comes meanwhile must wait for, have a size each. Every
    `look_every` passes beside rounds go without a prompt, so that the usual stays known however
    many prompts come.
    """

    def __init__(
        self,
        *,
        smallest: int = 4,
        largest: int = 512,
        start: int = 16,
        stretch: float = 1.45,
        look_every: int = 32,
    ) -> None:
        self._smallest = smallest
        self._largest = max(largest, smallest)
        self._stretch = stretch
        self._look_every = look_every
        self._look_in = 0
        self._usual_s = 0.0
        self._sizes = dict.fromkeys((True, False), float(min(start, self._largest)))

    def next(self, *, beside_rounds: bool) -> int:
        """Prompt tokens for the next pass; 0, when it is time to look, only beside rounds."""
        if beside_rounds:
            self._look_in -= 1
            if self._look_in < 0:
                self._look_in = self._look_every
                return 0
        return round(self._sizes[beside_rounds])

    def ran(self, prompt_tokens: int, seconds: float, *, beside_rounds: bool) -> None:
        """Learn from a pass with that many prompt tokens, beside rounds or alone."""
        if not prompt_tokens:
            self._look_in = self._look_every
            self._usual_s += (0.2 if self._usual_s else 1.0) * (seconds - self._usual_s)
        elif self._usual_s and seconds:
            size = self._sizes[beside_rounds]
            wanted = prompt_tokens * self._stretch * self._usual_s / seconds
            step = min(max(wanted, 0.5 * size), 1.2 * size)
            self._sizes[beside_rounds] = min(max(step, self._smallest), self._largest)
