"""Streams to engine: the asyncio side of the verifier.

Frames of all streams meet in one inbox, what the engine has to say leaves through one queue a
stream, and there is one hand-over to the compute thread per step. Knows nothing of gRPC.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

from cloud_verifier.channel import UNREAD_FRAMES, Channel
from cloud_verifier.engine import Arrival, Departure, Detached, Engine
from cloud_verifier.pace import StreamBounds
from cloud_verifier.quotas import Account
from cloud_verifier.sessions import Stream
from draftwire.errors import (
    DeadlineExceeded,
    DraftwireError,
    Draining,
    InternalError,
    ProtocolViolation,
    QuotaExceeded,
    ServerFull,
    SlowReader,
    Unavailable,
)
from draftwire.types import ClientFrame, Finished, Grammar, Open, ServerFrame, Verdict

logger = logging.getLogger(__name__)

Step: TypeAlias = Callable[[Sequence[Arrival]], list[Departure]]
Compute: TypeAlias = Callable[[Step, Sequence[Arrival]], Awaitable[list[Departure]]]
"""Runs a step of the engine off the event loop."""


def _stopped() -> Unavailable:
    return Unavailable("the engine stopped", remedy="open the session elsewhere")


class VerifierService:
    """Carries the frames of many streams to one engine and back.

    `run()` must be running while `decode()` is used. `compute` is replaced in tests only.
    """

    def __init__(
        self,
        engine: Engine,
        compute: Compute | None = None,
        clock: Callable[[], float] = time.monotonic,
        bounds: StreamBounds | None = None,
    ) -> None:
        self.engine = engine
        self._bounds = bounds or StreamBounds()
        self._clock = clock
        self._executor = ThreadPoolExecutor(1, "draftwire-compute") if compute is None else None
        # A large grammar takes longer than a pass: it must not hold one up.
        self._compiling = ThreadPoolExecutor(1, "draftwire-grammar") if compute is None else None
        self._compute = compute or self._in_thread
        self._inbox: list[Arrival] = []
        self._channels: dict[Stream, Channel] = {}
        self._left: dict[Stream, Channel] = {}  # ended, but the engine has not heard of it yet
        self._unopened: dict[Channel, asyncio.TimerHandle] = {}  # longest waiting first
        self._wake = asyncio.Event()
        self._quiet = asyncio.Event()
        self._stopped = False

    async def decode(
        self,
        frames: AsyncIterator[ClientFrame],
        owner: str = "",
        account: Account | None = None,
    ) -> AsyncGenerator[ServerFrame]:
        """Serve one stream: the client's frames in, the verifier's out, until finished.

        Its session belongs to `owner`, and what it takes is charged to `account`. Raises the
        `DraftwireError` that ends the stream. Ends silently when the client half-closes before
        its generation has finished.
        """
        if self._stopped:
            raise _stopped()
        limits = self.engine.card.limits
        stream = Stream(owner)
        longest = limits.max_pending + limits.max_credit + UNREAD_FRAMES
        channel = Channel(longest, self._bounds, self._clock, account)
        self._channels[stream] = channel
        self._expect_open(channel)
        reader = asyncio.create_task(self._read(stream, channel, frames))
        try:
            while (item := await channel.out.get()) is not None:
                if isinstance(item, DraftwireError):
                    raise item
                yield item
                if isinstance(item, Finished):
                    break
        except DraftwireError as error:
            self._refused(stream, error, reported=error is channel.engines)
            raise
        finally:
            reader.cancel()
            self._came(channel)
            channel.close()
            self._left[stream] = self._channels.pop(stream)
            self._arrive(stream, Detached())

    async def run(self) -> None:
        """Step the engine for as long as there is something to do; never returns by itself."""
        try:
            while True:
                if not self._inbox and not self.engine.has_work:
                    await self._something()
                self._wake.clear()
                arrivals, self._inbox = self._inbox, []
                for arrival in arrivals:
                    if channel := self._channels.get(arrival.stream):
                        channel.taken()
                    elif isinstance(arrival.frame, Detached):
                        self._left.pop(arrival.stream, None)
                departures = await self._compute(self.engine.step, arrivals)
                for stream, item in departures:
                    self._tell(stream, item)
                for stream, item in departures:
                    if isinstance(item, Verdict):
                        self._hold_to_quota(stream)
                if not self.engine.active:
                    self._quiet.set()
        finally:
            self._stopped = True
            self._quiet.set()
            for channel in self._channels.values():
                channel.put(_stopped())

    async def drain(self, grace_s: float) -> None:
        """Admit nothing new; wait for what is in flight, then tell the rest to go elsewhere."""
        self.engine.draining = True
        if not self._stopped:
            # One more step, so that what the last one had to say has been said.
            self._quiet.clear()
            self._wake.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._quiet.wait(), grace_s)
        if left := len(self.engine.active):
            logger.warning("sessions handed back unfinished: %d", left)
        for channel in self._channels.values():
            channel.put(
                Draining(
                    "the verifier is shutting down",
                    remedy="open the session again, here later or on another verifier",
                )
            )

    def close(self) -> None:
        """End the compute thread and free the target. Call after `run()` was cancelled."""
        if self._executor is not None:
            self._executor.shutdown(wait=True)
        if self._compiling is not None:
            self._compiling.shutdown(wait=True, cancel_futures=True)
        self.engine.target.close()

    # ------------------------------------------------------------------ inside

    async def _read(
        self, stream: Stream, channel: Channel, frames: AsyncIterator[ClientFrame]
    ) -> None:
        try:
            async for frame in frames:
                self._came(channel)
                await channel.turn()
                channel.admit(frame)
                stream.may_waste = channel.may_waste
                if isinstance(frame, Open) and frame.grammar is not None:
                    await self._compile(frame, frame.grammar)
                self._arrive(stream, frame)
            channel.put(None)
        except DraftwireError as error:
            channel.put(error)
        except Exception as error:  # whatever a transport raises, the stream must not hang
            logger.warning("a stream can't be read: %r", error)
            channel.put(ProtocolViolation(f"the stream can't be read: {error}"))
        self._arrive(stream, Detached())

    async def _compile(self, opening: Open, grammar: Grammar) -> None:
        """Have the grammar compiled before the engine asks for it."""
        if (grammars := self.engine.target.grammars) is None:
            return  # the engine refuses it by name
        try:
            if self._compiling is None:
                grammars.compile(grammar)
            else:
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(self._compiling, grammars.compile, grammar)
        except DraftwireError as error:
            error.session_id = opening.session_id.hex()
            raise

    def _expect_open(self, channel: Channel) -> None:
        """Hold a stream to send a frame soon; make room for it among those that have not."""
        within_s = self._bounds.open_within_s
        late = DeadlineExceeded(
            f"no open came within {within_s:g} s", remedy="send open when the stream begins"
        )
        timer = asyncio.get_running_loop().call_later(within_s, channel.put, late)
        self._unopened[channel] = timer
        if len(self._unopened) > self._bounds.max_unopened:
            oldest = next(iter(self._unopened))
            self._came(oldest)
            oldest.put(ServerFull("too many streams have not opened", remedy="try again"))

    def _came(self, channel: Channel) -> None:
        if timer := self._unopened.pop(channel, None):
            timer.cancel()

    def _arrive(self, stream: Stream, frame: ClientFrame | Detached) -> None:
        self._inbox.append(Arrival(stream, frame, self._clock()))
        self._wake.set()

    def _refused(self, stream: Stream, error: DraftwireError, *, reported: bool) -> None:
        if error.session_id is None and stream.session is not None:
            error.session_id = stream.session.id.hex()
        if not reported:
            self.engine.observer.refused(error.code)
        # Of the message nothing is logged: it may tell the client of its own tokens.
        ours = isinstance(error, SlowReader | InternalError)
        logger.log(
            logging.WARNING if ours else logging.INFO,
            "failed" if ours else "refused",
            extra={"session": error.session_id, "code": error.code},
        )

    def _tell(self, stream: Stream, item: ServerFrame | DraftwireError) -> None:
        if (channel := self._channels.get(stream)) is None:
            # A pass that ran while its stream was cut is paid for like any other.
            if (left := self._left.get(stream)) and not isinstance(item, DraftwireError):
                left.charge(item, stream.session)
            return
        if isinstance(item, DraftwireError):
            channel.engines = item
        channel.charge(item, stream.session)
        if not channel.put(item):
            self._arrive(stream, Detached())

    def _hold_to_quota(self, stream: Stream) -> None:
        """End a stream whose key has used up its tokens.

        Its client opens again when there are some: meanwhile it holds neither KV nor a place.
        """
        if channel := self._channels.get(stream):
            try:
                channel.check_quota()
            except QuotaExceeded as error:
                channel.put(error)
                self._arrive(stream, Detached())

    async def _something(self) -> None:
        """Wait for a frame, or until the engine is due without one."""
        due = self.engine.next_wakeup
        try:
            async with asyncio.timeout(None if due is None else due - self._clock()):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _in_thread(self, step: Step, arrivals: Sequence[Arrival]) -> list[Departure]:
        return await asyncio.get_running_loop().run_in_executor(self._executor, step, arrivals)
