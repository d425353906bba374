"""An asyncio event loop on virtual time: hours of timers run in milliseconds, always alike.

Time stands still while anything can run and jumps to the next timer when nothing can. There
are no threads, sockets or system calls inside, so that a run depends on its code and seeds only.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context
from typing import Any, NoReturn, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# Callbacks at one instant after which the loop is taken to spin. Time can't move while
# anything is ready, so that a loop polling with `sleep(0)` would otherwise never end.
SPIN_LIMIT = 1_000_000

# Virtual seconds that cancelled tasks have to end in.
_GRACE_S = 3600.0


class Deadlock(RuntimeError):
    """Nothing is ready and no timer is left, or the loop spins without time moving."""


class LeftoverTasks(RuntimeError):
    """The coroutine ended well but tasks it had started were still running."""


class VirtualClockLoop(asyncio.BaseEventLoop):
    """An event loop whose `time()` starts at 0 s and jumps to the next timer when idle.

    Timers fire in order of time, those of equal time in the order in which they were made.
    Raises `Deadlock` out of `run_forever` and `run_until_complete`. Threads can't wake the
    loop, so `run_in_executor` and what builds on it raise `NotImplementedError`, as do sockets.
    """

    # Of BaseEventLoop: handles to run, in order.
    _ready: deque[asyncio.Handle]

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._serial = itertools.count()
        self._cancelled_timers = 0
        self._spin = 0

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call back at virtual time `when`; a time that has passed means as soon as possible."""
        if self.is_closed():
            raise RuntimeError("Event loop is closed")
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        timer._scheduled = True  # type: ignore[attr-defined] # so that cancelling it is reported
        heapq.heappush(self._timers, (when, next(self._serial), timer))
        return timer

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call back after `delay` virtual seconds."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> NoReturn:
        """Refused: a thread takes real time, which this loop does not know."""
        raise NotImplementedError("VirtualClockLoop runs no threads")

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:  # noqa: ARG002
        # Timeouts are mostly cancelled long before they are due: sweep them out in bulk.
        self._cancelled_timers += 1
        if self._cancelled_timers > 64 and self._cancelled_timers * 2 > len(self._timers):
            self._timers = [entry for entry in self._timers if not entry[2].cancelled()]
            heapq.heapify(self._timers)
            self._cancelled_timers = 0

    def _write_to_self(self) -> None:
        """Nothing to wake: what `call_soon_threadsafe` adds is found on the next turn."""

    def _run_once(self) -> None:
        # Replaces BaseEventLoop's, which would ask a selector.
        ready, timers = self._ready, self._timers
        if not ready:
            self._spin = 0
            while timers and timers[0][2].cancelled():
                heapq.heappop(timers)
            if not timers:
                raise Deadlock(f"nothing is ready and no timer is left; {_describe(self)}")
            self._now = max(self._now, timers[0][0])
        now = self._now
        while timers and timers[0][0] <= now:
            timer = heapq.heappop(timers)[2]
            timer._scheduled = False  # type: ignore[attr-defined]
            ready.append(timer)
        turn = len(ready)
        self._spin += turn
        if self._spin > SPIN_LIMIT:
            self._spin = 0
            raise Deadlock(f"{SPIN_LIMIT} callbacks ran at {now} s; {_describe(self)}")
        for _ in range(turn):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()


def _describe(loop: asyncio.AbstractEventLoop) -> str:
    """Which tasks wait, and on which line."""
    tasks = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
    waiting = ", ".join(f"{task.get_name()} at {_innermost(task)}" for task in tasks)
    return f"at {loop.time():.6f} s {len(tasks)} tasks wait: {waiting}"


def _innermost(task: asyncio.Task[Any]) -> str:
    """The deepest coroutine a task waits in, as name:line."""
    coro: Any = task.get_coro()
    where = "its start"
    while frame := getattr(coro, "cr_frame", None):
        where = f"{coro.__qualname__}:{frame.f_lineno}"
        coro = coro.cr_await
    return where


def run_virtual(coro: Coroutine[Any, Any, T], *, timeout_s: float | None = None) -> T:
    """Run `coro` to its end on a fresh `VirtualClockLoop` and return its result.

    Raises `TimeoutError` after `timeout_s` virtual seconds, `Deadlock` if it can't go on,
    `LeftoverTasks` if tasks outlive it, and what a callback or a forgotten task raised. All
    tasks are cancelled and asynchronous generators closed before this returns.
    """
    loop = VirtualClockLoop()
    stray: list[BaseException] = []

    def note(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        stray.append(context.get("exception") or RuntimeError(context["message"]))

    async def bounded() -> T:
        async with asyncio.timeout(timeout_s):
            return await coro

    tasks: list[asyncio.Task[Any]] = []

    def make(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        tasks.append(asyncio.Task(coro, loop=loop, **options))
        return tasks[-1]

    loop.set_exception_handler(note)
    loop.set_task_factory(make)
    try:
        result = loop.run_until_complete(bounded())
        leftover = sorted(task.get_name() for task in asyncio.all_tasks(loop))
        waiting = _describe(loop)
    finally:
        _shut_down(loop)
    if leftover:
        raise LeftoverTasks(waiting)
    # Not left to the garbage collector, whose moment differs from one Python to the next.
    stray += [error for task in tasks if (error := _unheard(task)) is not None]
    if stray:
        raise stray[0]
    return result


def _unheard(task: asyncio.Task[Any]) -> BaseException | None:
    """The exception of a task that nobody asked for its result."""
    if task.done() and not task.cancelled() and getattr(task, "_log_traceback", False):
        return task.exception()
    return None


def _shut_down(loop: VirtualClockLoop) -> None:
    """Cancel what still runs, close generators and the loop."""
    try:
        if tasks := asyncio.all_tasks(loop):
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.wait(tasks, timeout=_GRACE_S))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
