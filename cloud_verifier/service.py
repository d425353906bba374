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

from cloud_verifier.engine import Arrival, Departure, Detached, Engine
from cloud_verifier.sessions import Stream
from draftwire.errors import (
    DraftwireError,
    Draining,
    InternalError,
    ProtocolViolation,
    SlowReader,
    Unavailable,
)
from draftwire.types import ClientFrame, Finished, ServerFrame

logger = logging.getLogger(__name__)

Step: TypeAlias = Callable[[Sequence[Arrival]], list[Departure]]
Compute: TypeAlias = Callable[[Step, Sequence[Arrival]], Awaitable[list[Departure]]]
"""Runs a step of the engine off the event loop."""

UNREAD_FRAMES = 64
"""Frames of one stream that may wait for the engine; its sender waits beyond."""


def _stopped() -> Unavailable:
    return Unavailable("the engine stopped", remedy="open the session elsewhere")


class _Channel:
    """The two queues of a stream. A None in `out` ends it."""

    def __init__(self, longest: int) -> None:
        self.out: asyncio.Queue[ServerFrame | DraftwireError | None] = asyncio.Queue()
        self.slots = asyncio.Semaphore(UNREAD_FRAMES)
        self.longest = longest
        self.engines: DraftwireError | None = None  # the engine's word on why the stream ended

    def put(self, item: ServerFrame | DraftwireError | None) -> bool:
        """Queue something for the client; False if it has fallen too far behind."""
        if self.out.qsize() < self.longest:
            self.out.put_nowait(item)
            return True
        while not self.out.empty():
            self.out.get_nowait()
        self.out.put_nowait(
            SlowReader(
                f"{self.longest} verdicts were not read",
                remedy="open the session again and read on; nothing is lost",
            )
        )
        return False


class VerifierService:
    """Carries the frames of many streams to one engine and back.

    `run()` must be running while `decode()` is used. `compute` is replaced in tests only.
    """

    def __init__(
        self,
        engine: Engine,
        compute: Compute | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engine = engine
        self._clock = clock
        self._executor = ThreadPoolExecutor(1, "draftwire-compute") if compute is None else None
        self._compute = compute or self._in_thread
        self._inbox: list[Arrival] = []
        self._channels: dict[Stream, _Channel] = {}
        self._wake = asyncio.Event()
        self._quiet = asyncio.Event()
        self._stopped = False

    async def decode(
        self, frames: AsyncIterator[ClientFrame], owner: str = ""
    ) -> AsyncGenerator[ServerFrame]:
        """Serve one stream: the client's frames in, the verifier's out, until finished.

        Raises the `DraftwireError` that ends the stream. Ends silently when the client
        half-closes before its generation has finished.
        """
        if self._stopped:
            raise _stopped()
        limits = self.engine.card.limits
        stream = Stream(owner)
        channel = _Channel(limits.max_pending + limits.max_credit + UNREAD_FRAMES)
        self._channels[stream] = channel
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
            del self._channels[stream]
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
                        channel.slots.release()
                for stream, item in await self._compute(self.engine.step, arrivals):
                    self._tell(stream, item)
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
            logger.warning("%d sessions are handed back unfinished", left)
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
        self.engine.target.close()

    # ------------------------------------------------------------------ inside

    async def _read(
        self, stream: Stream, channel: _Channel, frames: AsyncIterator[ClientFrame]
    ) -> None:
        try:
            async for frame in frames:
                await channel.slots.acquire()
                self._arrive(stream, frame)
            channel.put(None)
        except DraftwireError as error:
            channel.put(error)
        except Exception as error:  # whatever a transport raises, the stream must not hang
            logger.warning("a stream can't be read: %r", error)
            channel.put(ProtocolViolation(f"the stream can't be read: {error}"))
        self._arrive(stream, Detached())

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
            return
        if isinstance(item, DraftwireError):
            channel.engines = item
        if not channel.put(item):
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
