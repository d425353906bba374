"""The verifier's engine: frames in, one pass of the target, frames out.

`Engine.step` is the whole of it. The engine knows neither gRPC nor torch: it is written against
`TargetModel`, and the service carries its frames. Rule numbers are those of docs/protocol.md.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from cloud_verifier.admission import check_draft, check_open
from cloud_verifier.kv_cache import BlockPool
from cloud_verifier.scheduler import Share, schedule
from cloud_verifier.sessions import Session, Stream
from cloud_verifier.target import Judgement, Row, TargetModel
from draftwire.errors import (
    DraftwireError,
    Draining,
    InternalError,
    PermissionDenied,
    ProtocolViolation,
    ServerFull,
    Superseded,
)
from draftwire.types import Cancel, ClientFrame, Draft, Finished, Open, ServerFrame, Timing

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Detached:
    """Stands in a stream's frames for its end: broken, half-closed or left."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """What came from a stream, and when, in seconds of the engine's clock."""

    stream: Stream
    frame: ClientFrame | Detached
    at: float


Departure: TypeAlias = tuple[Stream, ServerFrame | DraftwireError]
"""What to tell a stream. An error is its last word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Bounds of the engine.

    `max_sessions` generations are in flight at once; up to `max_retained` more sessions are kept
    for their next turn, for `session_ttl_s` seconds. A pass takes `max_batch_tokens` tokens.
    """

    max_sessions: int = 64
    max_retained: int = 1024
    session_ttl_s: float = 600.0
    max_batch_tokens: int = 512


class Engine:
    """Sessions, their KV and the target. Used from one thread at a time.

    A session is *active* while it has a stream and an unfinished generation: its KV is promised
    to it. Else it is *idle*: its KV is a cache, and goes when others need it.
    """

    def __init__(
        self,
        target: TargetModel,
        config: EngineConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.target = target
        self.config = config or EngineConfig()
        self.card = target.card
        self.pool = BlockPool(target.num_blocks, target.block_size)
        self.active: dict[bytes, Session] = {}
        self.idle: dict[bytes, Session] = {}  # longest idle first
        self.draining = False
        self._clock = clock
        self._departures: list[Departure] = []

    def step(self, arrivals: Sequence[Arrival]) -> list[Departure]:
        """Apply what arrived, then schedule → run → commit one pass. Returns what to tell whom.

        Frames that come while a pass runs wait for the next step: that is how batches form.
        """
        for arrival in arrivals:
            self._apply(arrival)
        self._expire()
        shares = schedule(
            (session for session in self.active.values() if session.ready),
            budget=self.config.max_batch_tokens,
            max_rows=self.card.limits.max_rows,
        )
        started = self._clock()
        if judgements := self._run(shares):
            self._commit(shares, judgements, started)
        departures, self._departures = self._departures, []
        return departures

    @property
    def has_work(self) -> bool:
        """Whether a step would run a pass without new frames."""
        return any(session.ready for session in self.active.values())

    @property
    def next_expiry(self) -> float | None:
        """When the longest idle session is dropped, seconds of the clock; None without any."""
        for session in self.idle.values():
            return session.queued_at + self.config.session_ttl_s
        return None

    # ------------------------------------------------------------------ apply

    def _apply(self, arrival: Arrival) -> None:
        stream, frame, session = arrival.stream, arrival.frame, arrival.stream.session
        if stream.closed or (session is not None and session.stream is not stream):
            return  # a later open owns the session (rule 4)
        try:
            match frame:
                case Open():
                    self._open(stream, frame, arrival.at)
                case Detached():
                    stream.closed = True
                    if session is not None:
                        self._detach(session)
                case _ if session is None:
                    raise ProtocolViolation("a frame came before open", remedy="send open first")
                case Draft():
                    check_draft(frame, self.card)
                    waiting = session.ready
                    session.draft(frame)
                    if not waiting:
                        session.queued_at = session.waiting_since = arrival.at
                case Cancel():
                    self._tell(session, session.cancel())
        except DraftwireError as error:
            if isinstance(frame, Open):
                error.session_id = frame.session_id.hex()
            self._fail(stream, error)

    def _open(self, stream: Stream, opening: Open, at: float) -> None:
        if stream.session is not None:
            raise ProtocolViolation("a stream opens once", remedy="use a new stream")
        if self.draining:
            raise Draining("the verifier is shutting down", remedy="use another one")
        known = self.active.get(opening.session_id) or self.idle.get(opening.session_id)
        session = known or Session(opening.session_id, stream.owner, self.card)
        if session.owner != stream.owner:
            raise PermissionDenied("the session belongs to another key")
        check_open(opening, self.card)
        history = session.resolve(opening)
        if session.id not in self.active and len(self.active) >= self.config.max_sessions:
            raise ServerFull(
                f"{len(self.active)} generations are in flight, the most that are served at once",
                remedy="try again later, or serve with more --max-sessions",
            )
        self.pool.reserve(session.kv, session.reach_of(opening))
        fenced = session.stream
        frames = session.open(opening, history, stream)
        if fenced is not None:
            later = Superseded(
                "a later stream opened this session",
                remedy="go on there, or start a session of your own",
                session_id=session.id.hex(),
            )
            self._departures.append((fenced, later))
            fenced.closed = True
        stream.session = session
        self.idle.pop(session.id, None)
        self.active[session.id] = session
        session.queued_at = session.waiting_since = at
        self._tell(session, frames)

    def _detach(self, session: Session) -> None:
        session.detach()
        self._park(session)

    def _park(self, session: Session) -> None:
        """Active no more: its KV may go when others need it."""
        self.pool.unreserve(session.kv)
        if self.active.pop(session.id, None) is not None:
            session.queued_at = self._clock()
            self.idle[session.id] = session

    def _expire(self) -> None:
        while self.idle:
            session = next(iter(self.idle.values()))
            expired = session.queued_at + self.config.session_ttl_s <= self._clock()
            if not expired and len(self.idle) <= self.config.max_retained:
                break
            self.pool.release(session.kv)
            del self.idle[session.id]

    # ------------------------------------------------------------------ run and commit

    def _run(self, shares: Sequence[Share]) -> list[Judgement | None]:
        """One pass of the target. A pass that fails ends the streams it was for, no others."""
        if not shares:
            return []
        try:
            return self.target.verify([self._row(share) for share in shares])
        except Exception as error:  # a fault in one pass must not stop the engine
            logger.exception("a pass of %d sessions failed", len(shares))
            for share in shares:
                if share.session.stream is not None:
                    self._fail(share.session.stream, InternalError(f"the pass failed: {error}"))
                self.pool.release(share.session.kv)
            return []

    def _row(self, share: Share) -> Row:
        session = share.session
        table = session.kv
        self.pool.grow(table, share.end, evictable=(idle.kv for idle in self.idle.values()))
        owed = session.tokens[table.length : table.length + share.owed]
        return Row(
            tokens=owed + session.pending[: share.drafts],
            start=table.length,
            blocks=table.blocks,
            drafts=share.drafts,
            judge=share.judge,
            sampling=session.sampling,
        )

    def _commit(
        self,
        shares: Sequence[Share],
        judgements: Sequence[Judgement | None],
        started: float,
    ) -> None:
        ended = self._clock()
        rows = sum(share.owed + share.drafts for share in shares)
        for share, judgement in zip(shares, judgements, strict=True):
            session = share.session
            session.queued_at = ended
            if judgement is None:
                session.kv.length += share.owed
                continue
            timing = Timing(
                queue_us=max(0, round((started - session.waiting_since) * 1e6)),
                pass_us=round((ended - started) * 1e6),
                pass_rows=rows,
            )
            session.waiting_since = ended
            self._tell(session, session.commit(share.drafts, judgement, timing))

    # ------------------------------------------------------------------ tell

    def _tell(self, session: Session, frames: Sequence[ServerFrame]) -> None:
        if session.stream is not None:
            self._departures.extend((session.stream, frame) for frame in frames)
        if frames and isinstance(frames[-1], Finished):
            self._park(session)

    def _fail(self, stream: Stream, error: DraftwireError) -> None:
        session = stream.session
        if session is not None:
            error.session_id = session.id.hex()
            self._detach(session)
        stream.closed = True
        self._departures.append((stream, error))
