"""Who gets KV blocks, and who gives them up when they run short."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from cloud_verifier.kv_cache import BlockPool
from cloud_verifier.scheduler import Share
from cloud_verifier.sessions import Session


class Memory:
    """Gives the shares of a pass their blocks, taking them from other sessions if it must.

    `active` sessions stand in order of admission. One that waits for its device keeps its blocks
    for `hold_s` seconds, so that a round trip does not cost it what it has computed. `preempted`
    is told whose blocks are about to go.
    """

    def __init__(
        self,
        pool: BlockPool,
        active: Mapping[bytes, Session],
        *,
        hold_s: float,
        preempted: Callable[[Session], None],
    ) -> None:
        self.denied = False  # whether a share of the last pass had to wait for blocks
        self._pool = pool
        self._active = active
        self._hold_s = hold_s
        self._preempted = preempted

    def grant(self, share: Share, granted: Sequence[Share], now: float) -> bool:
        """Give a share its blocks. When they run short others lose theirs, not those `granted`.

        A prompt gets blocks for all of it at once, and only where each of the others still finds
        one for its next tokens: it would else soon lose what it computed.
        """
        session, active = share.session, self._active.values()
        positions = max(share.end, len(session.tokens))
        entering = session.in_prompt and len(session.kv.blocks) < self._pool.blocks_for(positions)
        while True:
            others = sum(bool(other.kv.blocks) for other in active if other is not session)
            if self._pool.grow(session.kv, positions, spare=others if entering else 0):
                return True
            loser = victim(session, active, granted, asleep_since=now - self._hold_s)
            if loser is None:
                self.denied = True
                return False
            self._preempted(loser)
            self._pool.release(loser.kv, now)

    @property
    def next_release(self) -> float:
        """When the first of those that keep their blocks must let go, seconds of the clock."""
        held = (
            session.queued_at + self._hold_s
            for session in self._active.values()
            if session.kv.blocks and not session.ready
        )
        return min(held, default=math.inf)


def victim(
    session: Session,
    active: Iterable[Session],
    granted: Sequence[Share],
    *,
    asleep_since: float = -math.inf,
) -> Session | None:
    """Who of the `active`, in order of admission, gives up its blocks for `session`.

    Of those without a share: whose device has let it wait since `asleep_since` or longer gives
    way to anyone, the longest waiting first. Else the last in rank gives way to those before it;
    owners rank equal, so that everyone's first session comes before anyone's second. Of the ready
    ones the first in rank thus always gets on, and so do all in the end.
    """
    spared = {share.session.id for share in granted} | {session.id}
    sessions_of: Counter[str] = Counter()
    rank: dict[bytes, tuple[int, int]] = {}
    holding: list[Session] = []
    for place, other in enumerate(active):
        rank[other.id] = (sessions_of[other.owner], place)
        sessions_of[other.owner] += 1
        if other.kv.blocks and other.id not in spared:
            holding.append(other)
    asleep = [other for other in holding if not other.ready and other.queued_at <= asleep_since]
    if asleep:
        return min(asleep, key=lambda other: other.queued_at)
    last = max(holding, key=lambda other: rank[other.id], default=None)
    return last if last is not None and rank[last.id] > rank[session.id] else None
