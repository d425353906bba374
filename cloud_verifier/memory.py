"""Who gets KV blocks, and who gives them up when they run short."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from cloud_verifier.kv_cache import BlockPool
from cloud_verifier.scheduler import Share
from cloud_verifier.sessions import Session

ROOM_TO_GROW = 64
"""Tokens that every session under way may still write when another enters."""


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

        Who comes in gets blocks for its whole prompt at once, and only where it and each of the
        others may still grow by `ROOM_TO_GROW`: it would else soon lose what it computed.
        """
        session, pool = share.session, self._pool
        positions = max(share.end, len(session.tokens))
        held = len(session.kv.blocks)
        entering = held < pool.blocks_for(positions) and (session.in_prompt or not held)
        while True:
            spare = self._growth(session, positions) if entering else 0
            if pool.grow(session.kv, positions, spare=spare):
                return True
            loser = victim(session, self._active.values(), granted, asleep_since=now - self._hold_s)
            if loser is None:
                self.denied = True
                return False
            self._preempted(loser)
            pool.release(loser.kv, now)

    def _growth(self, entering: Session, positions: int) -> int:
        """Blocks that it and those under way need beside what they have, to grow for a while."""

        def more(session: Session, length: int, held: int) -> int:
            grown = min(session.reach, length + ROOM_TO_GROW)
            return max(0, self._pool.blocks_for(grown) - held)

        return more(entering, positions, self._pool.blocks_for(positions)) + sum(
            more(other, len(other.tokens), len(other.kv.blocks))
            for other in self._active.values()
            if other.kv.blocks and other is not entering
        )

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
