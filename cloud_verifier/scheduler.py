"""What the next pass computes.

Chunks of prompts and drafts are the same thing, tokens not yet computed, and share one budget.
Sessions are served in the order in which their work came up; whoever got a pass queues again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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


def schedule(sessions: Iterable[Session], *, budget: int, max_rows: int) -> list[Share]:
    """Divide `budget` tokens among the sessions that are ready, longest waiting first.

    A session judges up to `max_rows` − 1 drafts. A prompt that does not fit goes in chunks; the
    last chunk is judged. Pure: nothing changes but through what the engine does with the shares.
    """
    shares: list[Share] = []
    for session in sorted(sessions, key=lambda s: s.queued_at):
        if budget <= 0:
            break
        owed = len(session.tokens) - session.kv.length
        if owed > budget:
            shares.append(Share(session, owed=budget, drafts=0, judge=False))
            break
        drafts = min(len(session.pending), max_rows - 1, session.room, budget - owed)
        shares.append(Share(session, owed=owed, drafts=drafts, judge=True))
        budget -= owed + drafts
    return shares
