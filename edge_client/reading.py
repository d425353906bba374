"""One generation while it is read: what it holds meanwhile, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from draftwire.errors import DeadlineExceeded, DraftwireError, InvalidRequest
from draftwire.types import FinishReason
from edge_client.drafters.lookup import LookupDrafter
from edge_client.lookup_controller import LookupController
from edge_client.options import Settings
from edge_client.output import Output
from edge_client.plan import Controller
from edge_client.results import Delta, Kind, Summary, summarise
from edge_client.session import Generation, Session
from edge_client.tentative import Shown, Tentative

if TYPE_CHECKING:
    from edge_client.client import AsyncEdgeClient

T = TypeVar("T")

_LATE_S = 0.5
"""How long the verifier's word of the end is waited for when time is up."""


class Reading:
    """A generation that goes on as it is read; `AsyncStream` is the handle that apps have of it.

    The two are apart because this one is referred to while it runs, by its client and by itself:
    only of the handle can be told that the app has dropped it.
    """

    def __init__(
        self,
        client: AsyncEdgeClient,
        session: Callable[[], Coroutine[Any, Any, Session]],
        prompt: Sequence[int],
        controller: Controller,
        settings: Settings,
        done: Callable[[Summary], None] | None = None,
        turn: Turn | None = None,
    ) -> None:
        self._client = client
        self._done = done
        self._session = session
        self._prompt = prompt
        self._controller = controller
        self._settings = settings
        self._turn = turn
        self._generation: Generation | None = None
        self._cancelled = asyncio.Event()
        self._shown = Shown()
        self._summary: Summary | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # while it runs
        self._closing: asyncio.Task[None] | None = None
        self._deltas = self._run()

    async def next(self) -> Delta:
        """The next change of the text. Raises `StopAsyncIteration` at the end."""
        delta = await anext(self._deltas)
        self._shown.apply(delta)
        return delta

    async def close(self) -> None:
        """End the generation if it has not ended."""
        await self._deltas.aclose()

    def abandon(self) -> None:
        """Have it closed on its loop if it runs, from any thread: nobody will read on."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nothing runs there
                loop.call_soon_threadsafe(self._close_soon)

    def _close_soon(self) -> None:
        if self._loop is not None:
            self._closing = self._loop.create_task(self.close())

    def cancel(self) -> None:
        """End the generation; there is no more than what is committed by then."""
        self._end()

    def _end(self, *, within_s: float = math.inf) -> None:
        self._cancelled.set()
        if self._generation is not None:
            self._generation.cancel(within_s=within_s)

    @property
    def shown(self) -> Shown:
        """What the deltas so far add up to, after an error too."""
        return self._shown

    @property
    def summary(self) -> Summary:
        """How it went. Raises `InvalidRequest` before the end."""
        if self._summary is None:
            raise InvalidRequest("the generation has not ended", remedy="read the stream first")
        return self._summary

    @property
    def lost(self) -> DraftwireError | None:
        """What the connection broke by, while it is made again and the text stands still."""
        return None if self._generation is None else self._generation.lost

    async def _run(self) -> AsyncGenerator[Delta]:
        self._client._settle()
        turn, late = self._turn or Turn(), asyncio.Event()

        def end() -> None:
            late.set()
            self._end(within_s=_LATE_S)

        after_s = self._settings.timeout_s
        self._loop = asyncio.get_running_loop()
        timer = after_s and self._loop.call_later(after_s, end)
        self._client._streams.add(self)
        try:
            await self._unless_cancelled(turn.come())
            async with contextlib.aclosing(self._generate(turn)) as deltas:
                async for delta in deltas:
                    yield delta
            if late.is_set() and self.summary.finish_reason is FinishReason.CANCELLED:
                raise DeadlineExceeded(
                    f"the generation had not ended after {after_s} s",
                    remedy="allow it more time, or ask for fewer max_tokens",
                )
        finally:
            self._loop = None
            self._client._streams.discard(self)
            turn.pass_on()
            if timer:
                timer.cancel()

    async def _generate(self, turn: Turn) -> AsyncGenerator[Delta]:
        started = first = last = time.perf_counter()
        output, tentative = Output(self._client.tokenizer, self._settings.request.stop), Tentative()
        session = await self._unless_cancelled(self._session())
        if session is None:  # so that what has ended before it began has a summary too
            session = self._client._session(self._client._presumed())
        matcher = await self._unless_cancelled(self._client._matcher(self._settings))
        session.require_idle()  # before waiting for the drafter that it may hold itself
        async with self._client._drafting(self, session):
            self._generation = generation = session.generate(
                self._prompt, self._look_up(session), self._settings.request, matcher
            )
            if self._cancelled.is_set():
                generation.cancel()
            try:
                async with contextlib.aclosing(generation.run()) as run:
                    async for commits in run:
                        if commits:
                            last = time.perf_counter()
                            first = first if output.committed else last
                            turn.pass_on()
                        told = generation.logprobs[output.committed :]
                        given = output.take(commits, told)
                        shown = output.preview(generation.tentative)
                        kind = Kind.UNVERIFIED if generation.offline.cut_off else Kind.DRAFTED
                        for delta in tentative.change(given, shown, kind):
                            yield delta
                finished = generation.finished
                rest = output.end(
                    len(session.tokens) - len(self._prompt),
                    told=finished is not None and finished.reason is not FinishReason.CANCELLED,
                )
                for delta in tentative.change(rest, (), Kind.DRAFTED):
                    yield delta
            finally:
                if generation.finished is not None:
                    self._summary = summarise(
                        generation,
                        output.text,
                        output.tokens,
                        self._settings,
                        (started, first, last),
                        tentative.retracted,
                    )
                    if self._done is not None:
                        self._done(self._summary)

    async def _unless_cancelled(self, waiting: Coroutine[Any, Any, T]) -> T | None:
        """What `waiting` returns; None, at once, if the generation is cancelled meanwhile."""
        task = asyncio.create_task(waiting)
        cancelled = asyncio.create_task(self._cancelled.wait())
        try:
            await asyncio.wait({task, cancelled}, return_when=asyncio.FIRST_COMPLETED)
            return await task if task.done() else None
        finally:
            cancelled.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait([task])

    def _look_up(self, session: Session) -> Controller:
        """Let the session look drafts up first, if asked to; the controller to draft by."""
        settings = self._settings
        if not settings.prompt_lookup and not settings.prediction:
            return self._controller
        prediction = self._client._expected(settings.prediction)
        session.drafter = lookup = LookupDrafter(
            session.drafter, start=len(self._prompt), prediction=prediction
        )
        drafts = settings.num_draft_tokens
        if drafts == 0 or (drafts and not prediction):
            return self._controller
        return LookupController(self._controller, lookup)


class Turn:
    """Lets the first of several streams go ahead until the prompt they share is read.

    Then its KV is there for the others, who would each compute it if they came at once.
    """

    def __init__(self) -> None:
        self._taken = False
        self._read = asyncio.Event()

    async def come(self) -> None:
        """Wait for one's turn: the first to come need not."""
        if self._taken:
            await self._read.wait()
        self._taken = True

    def pass_on(self) -> None:
        """The prompt is read, or whoever was to read it has gone."""
        self._read.set()
