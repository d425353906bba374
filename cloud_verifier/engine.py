"""The verifier's engine: frames in, one pass of the target, frames out.

`Engine.step` is the whole of it. The engine knows neither gRPC nor torch: it is written against
`TargetModel`, and the service carries its frames. Rule numbers are those of docs/protocol.md.
"""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from cloud_verifier.admission import (
    check_draft,
    check_fits,
    check_open,
    compiled,
    full,
    overdue,
)
from cloud_verifier.hint import LoadHint
from cloud_verifier.kv_cache import BlockPool
from cloud_verifier.memory import Memory
from cloud_verifier.observer import Observer, report
from cloud_verifier.scheduler import ChunkSize, Share, schedule
from cloud_verifier.sessions import Session, Stream
from cloud_verifier.target import Judgement, TargetModel
from draftwire.errors import (
    DraftwireError,
    Draining,
    InternalError,
    PermissionDenied,
    ProtocolViolation,
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

    A generation ends with an error after `max_generation_s` seconds, a stream after its device
    has owed a frame for `max_silence_s`. When KV runs short, a session keeps its own for
    `kv_hold_s` seconds after it began to wait for its device.
    """

    max_sessions: int = 64
    max_retained: int = 1024
    session_ttl_s: float = 600.0
    max_batch_tokens: int = 512
    max_generation_s: float = math.inf
    max_silence_s: float = 120.0
    kv_hold_s: float = 1.0


class Engine:
    """Sessions, their KV and the target. Used from one thread at a time.

    A session is *active* while it has a stream and an unfinished generation. Else it is *idle*: it
    keeps its tokens for a while, and its KV blocks only stay cached until others need them. When
    blocks run short, some session gives up its own and computes them again later: see `victim`.
    """

    def __init__(
        self,
        target: TargetModel,
        config: EngineConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
        observer: Observer | None = None,
    ) -> None:
        self.target = target
        self.config = config or EngineConfig()
        self.observer = observer or Observer()
        self.card = target.card
        self.pool = BlockPool(target.num_blocks, target.block_size)
        self.active: dict[bytes, Session] = {}
        self.idle: dict[bytes, Session] = {}  # longest idle first
        self.draining = False
        self._stalled = False  # what is ready waits for KV that others keep for a while
        self._memory = Memory(
            self.pool, self.active, hold_s=self.config.kv_hold_s, preempted=self._preempted
        )
        self.hint = LoadHint(self.config.max_batch_tokens, self.card.limits.max_rows - 1)
        self._chunk = ChunkSize(largest=self.config.max_batch_tokens // 2)  # rounds get the rest
        self._clock = clock
        self._departures: list[Departure] = []

    def step(self, arrivals: Sequence[Arrival]) -> list[Departure]:
        """Apply what arrived, then schedule → run → commit one pass. Returns what to tell whom.

        Frames that come while a pass runs wait for the next step: that is how batches form.
        """
        for arrival in arrivals:
            self._apply(arrival)
        self._expire(self._clock())
        shares = self._schedule()
        started = self._clock()
        if judgements := self._run(shares):
            self._commit(shares, judgements, started)
        departures, self._departures = self._departures, []
        return departures

    @property
    def has_work(self) -> bool:
        """Whether a step would run a pass without new frames, and before `next_wakeup`."""
        return not self._stalled and any(session.ready for session in self.active.values())

    @property
    def next_wakeup(self) -> float | None:
        """When a step is due though no frame came, seconds of the clock, if ever."""
        idle_since = [session.queued_at for session in itertools.islice(self.idle.values(), 1)]
        if self.pool.oldest is not None:
            idle_since.append(self.pool.oldest)
        soonest = min(
            min(idle_since, default=math.inf) + self.config.session_ttl_s,
            min(map(self._deadline, self.active.values()), default=math.inf),
            self._memory.next_release if self._stalled else math.inf,
        )
        return soonest if soonest < math.inf else None

    def _deadline(self, session: Session) -> float:
        """When an active session has taken too long, or its device."""
        silent = math.inf if session.ready else session.queued_at + self.config.max_silence_s
        return min(silent, session.begun_at + self.config.max_generation_s)

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
                        session.detach()
                        self._park(session)
                case _ if session is None:
                    raise ProtocolViolation("a frame came before open", remedy="send open first")
                case Draft():
                    check_draft(frame, self.card)
                    waiting, session.heard_at = session.ready, arrival.at
                    session.frames += 1
                    if stale := session.draft(frame):
                        self.observer.stale(stale)
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
        session = known or Session(opening.session_id, stream.owner, self.card, self.target.piece)
        if session.owner != stream.owner:
            raise PermissionDenied("the session belongs to another key")
        check_open(opening, self.card)
        history = session.resolve(opening)
        if session.id not in self.active and len(self.active) >= self.config.max_sessions:
            raise full(len(self.active))
        check_fits(session.reach_of(opening), self.pool.num_blocks * self.pool.block_size)
        grammar = compiled(opening, history, self.card, self.target.grammars)
        fenced = session.stream
        self.pool.release(session.kv, self._clock())  # what still fits is found by its content
        resumed = session.open(opening, history, stream, grammar)
        self.pool.adopt(session.kv, session.tokens)
        if not resumed:
            session.begun_at = at
            session.cached = min(session.kv.length, session.start)
        self.observer.opened(session.start, session.kv.length, session.mode, resumed=resumed)
        logger.info("resumed" if resumed else "opened", extra={"session": session.id.hex()})
        if fenced is not None:
            later = Superseded(
                "a later stream opened this session",
                remedy="go on there, or start a session of your own",
                session_id=session.id.hex(),
            )
            self._end(fenced, later)
        stream.session = session
        session.allowance.withheld = not stream.may_waste
        self.idle.pop(session.id, None)
        self.active[session.id] = session
        session.queued_at = session.waiting_since = session.told_at = at
        self._tell(session, session.greeting(len(history)), news=not resumed)

    def _park(self, session: Session) -> None:
        """Active no more: its blocks stay cached until others need them."""
        self.pool.release(session.kv, self._clock())
        if self.active.get(session.id) is session:  # not one that came in its place
            del self.active[session.id]
            session.queued_at = self._clock()
            self.idle[session.id] = session

    def _expire(self, now: float) -> None:
        while self.idle:
            session = next(iter(self.idle.values()))
            expired = session.queued_at + self.config.session_ttl_s <= now
            if not expired and len(self.idle) <= self.config.max_retained:
                break
            del self.idle[session.id]
        self.pool.expire(now, self.config.session_ttl_s)
        for session in list(self.active.values()):
            if self._deadline(session) <= now and session.stream is not None:
                silent = now - session.begun_at < self.config.max_generation_s
                since = session.queued_at if silent else session.begun_at
                self._fail(session.stream, overdue(now - since, silent=silent))

    # ------------------------------------------------------------------ schedule

    def _schedule(self) -> list[Share]:
        """What the next pass computes, with blocks for all of it.

        Not empty if a session is ready, but for a pass that was to go without prompts and while
        those that hold the KV are waited for.
        """
        active = self.active.values()
        for session in active:
            if session.ready and not session.kv.blocks:  # preempted: part may still be cached
                self.pool.adopt(session.kv, session.tokens)
        rounds = [session for session in active if not session.in_prompt]
        budget = self.config.max_batch_tokens
        beside_rounds = any(session.ready for session in rounds)
        chunk = self._chunk.next(beside_rounds=beside_rounds) if rounds else budget
        self._memory.denied = False
        shares = schedule(
            active,
            budget=budget,
            chunk=chunk,
            max_rows=self.card.limits.max_rows,
            grant=self._grant,
        )
        self._stalled = self._memory.denied and not shares and chunk > 0
        return shares

    def _grant(self, share: Share, granted: Sequence[Share]) -> bool:
        return self._memory.grant(share, granted, self._clock())

    def _preempted(self, session: Session) -> None:
        self.observer.preempted()
        logger.warning("preempted", extra={"session": session.id.hex()})

    # ------------------------------------------------------------------ run and commit

    def _run(self, shares: Sequence[Share]) -> list[Judgement | None]:
        """One pass of the target. A pass that fails ends the streams it was for, no others."""
        if not shares:
            return []
        try:
            return self.target.verify([share.row for share in shares])
        except Exception as error:  # a fault in one pass must not stop the engine
            logger.exception("a pass of %d sessions failed", len(shares))
            # Its words may tell one session of another's tokens.
            told = f"the pass failed ({type(error).__name__}); the verifier's log has a trace"
            for share in shares:
                if share.session.stream is not None:
                    self._fail(share.session.stream, InternalError(told))
            return []

    def _commit(
        self,
        shares: Sequence[Share],
        judgements: Sequence[Judgement | None],
        started: float,
    ) -> None:
        ended = self._clock()
        tokens = sum(share.tokens for share in shares)
        prompts = sum(share.owed for share in shares if share.prompt)
        rounds = any(not share.prompt for share in shares)
        self._chunk.ran(prompts, ended - started, beside_rounds=rounds)
        self.observer.passed(ended - started, tokens, len(shares))
        self.hint.ran(tokens, len(shares), ended - started)
        for share, judgement in zip(shares, judgements, strict=True):
            session = share.session
            session.queued_at = session.served_at = ended
            if judgement is None:
                session.kv.length += share.owed
                self.pool.publish(session.kv, session.tokens)
                continue
            news = session.frames > session.frames_told
            timing = Timing(
                queue_us=max(0, round((started - session.waiting_since) * 1e6)),
                pass_us=round((ended - started) * 1e6),
                pass_rows=tokens,
                frames=session.frames if news else 0,
                heard_us=max(0, round((started - session.heard_at) * 1e6)) if news else 0,
            )
            session.frames_told = session.frames
            session.waiting_since = ended
            self.hint.judged(share.drafts, judgement.accepted)
            try:
                frames = session.commit(share.drafts, judgement, timing, self.hint.current)
            except DraftwireError as error:
                if session.stream is not None:
                    self._fail(session.stream, error)
                continue
            self.pool.publish(session.kv, session.tokens)
            self._tell(session, frames, drafts=share.drafts)

    # ------------------------------------------------------------------ tell

    def _tell(
        self, session: Session, frames: Sequence[ServerFrame], *, drafts: int = 0, news: bool = True
    ) -> None:
        if news:
            report(self.observer, session, frames, drafts)
        if session.stream is not None:
            self._departures.extend((session.stream, frame) for frame in frames)
        if frames and isinstance(frames[-1], Finished):
            self._park(session)
            if news:
                extra = {"session": session.id.hex()}
                logger.info("finished: %s", frames[-1].reason.value, extra=extra)

    def _fail(self, stream: Stream, error: DraftwireError) -> None:
        session = stream.session
        if session is not None:
            error.session_id = session.id.hex()
            session.detach()
            self._park(session)
        self._end(stream, error)

    def _end(self, stream: Stream, error: DraftwireError) -> None:
        stream.closed = True
        self.observer.refused(error.code)
        self._departures.append((stream, error))
