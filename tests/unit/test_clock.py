"""The virtual clock: time jumps, order is kept, and what hangs is reported, not waited for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from draftwire.testing.clock import Deadlock, LeftoverTasks, VirtualClockLoop, run_virtual


def now() -> float:
    return asyncio.get_running_loop().time()


async def never() -> None:
    await asyncio.get_running_loop().create_future()


def test_a_day_passes_in_no_time() -> None:
    async def main() -> float:
        for _ in range(24):
            await asyncio.sleep(3600)
        return now()

    began = time.perf_counter()
    assert run_virtual(main()) == 86400
    assert time.perf_counter() - began < 1


def test_time_jumps_exactly_to_the_timer() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        fired: list[float] = []
        for when in (0.3, 0.1, 1e6 + 0.1, 0.2):
            loop.call_at(when, lambda: fired.append(now()))
        await asyncio.sleep(2e6)
        return fired

    assert run_virtual(main()) == [0.1, 0.2, 0.3, 1e6 + 0.1]


def test_timers_of_one_instant_fire_in_the_order_made() -> None:
    async def main() -> list[int]:
        fired: list[int] = []
        for i in range(100):
            asyncio.get_running_loop().call_at(5.0, fired.append, i)
        await asyncio.sleep(5)
        return fired

    assert run_virtual(main()) == list(range(100))


def test_time_stands_still_while_something_runs() -> None:
    async def main() -> tuple[float, float]:
        timer = asyncio.create_task(asyncio.sleep(1))
        for _ in range(1000):
            await asyncio.sleep(0)
        before = now()
        await timer
        return before, now()

    assert run_virtual(main()) == (0, 1)


def test_cancelled_timers_neither_fire_nor_move_time() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        for i in range(1000):
            loop.call_later(1 + i, pytest.fail, "fired").cancel()
        await asyncio.sleep(0.5)
        assert isinstance(loop, VirtualClockLoop)
        assert len(loop._timers) < 100, "cancelled timers pile up"
        return now()

    assert run_virtual(main()) == 0.5


def test_two_runs_are_alike() -> None:
    async def main() -> list[tuple[int, float]]:
        log: list[tuple[int, float]] = []
        queue: asyncio.Queue[int] = asyncio.Queue()

        async def produce(i: int) -> None:
            for n in range(20):
                await asyncio.sleep(0.001 * ((i * 7 + n * 3) % 5))
                queue.put_nowait(i)

        async with asyncio.TaskGroup() as group:
            for i in range(5):
                group.create_task(produce(i))
            log.extend([(await queue.get(), now()) for _ in range(100)])
        return log

    assert run_virtual(main()) == run_virtual(main())


def test_a_deadlock_names_who_waits_where() -> None:
    async def main() -> None:
        waiter = asyncio.create_task(never(), name="the waiter")
        await waiter

    with pytest.raises(Deadlock, match=r"2 tasks wait: .*main:\d+, the waiter at never:\d+"):
        run_virtual(main())


def test_a_loop_that_polls_is_a_deadlock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftwire.testing.clock.SPIN_LIMIT", 1000)

    async def main() -> None:
        while now() < 1:  # noqa: ASYNC110 - the fault under test
            await asyncio.sleep(0)

    with pytest.raises(Deadlock, match="1000 callbacks ran"):
        run_virtual(main())


def test_a_timeout_counts_virtual_seconds() -> None:
    assert run_virtual(asyncio.sleep(9, "done"), timeout_s=10) == "done"
    with pytest.raises(TimeoutError):
        run_virtual(never(), timeout_s=10)


def test_leftover_tasks_are_an_error_and_are_cancelled() -> None:
    cancelled = False

    async def background() -> None:
        nonlocal cancelled
        try:
            await never()
        except asyncio.CancelledError:
            await asyncio.sleep(1)  # ending may take a while
            cancelled = True
            raise

    async def main() -> None:
        task = asyncio.create_task(background(), name="forgotten")
        await asyncio.sleep(0)
        assert not task.done()

    with pytest.raises(LeftoverTasks, match=r"forgotten at .*never"):
        run_virtual(main())
    assert cancelled


def test_a_failure_in_a_forgotten_task_or_callback_surfaces() -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    async def forgets_task() -> None:
        task = asyncio.create_task(fail())
        await asyncio.wait([task])

    async def bad_callback() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(0)

    for main in (forgets_task, bad_callback):
        with pytest.raises(ZeroDivisionError):
            run_virtual(main())


def test_abandoned_generators_are_closed() -> None:
    closed = False

    async def numbers() -> AsyncIterator[int]:
        nonlocal closed
        try:
            while True:
                yield 1
        finally:
            await asyncio.sleep(1)
            closed = True

    stream = numbers()

    async def main() -> int:
        return await anext(stream)

    assert run_virtual(main()) == 1
    assert closed


def test_threads_are_refused() -> None:
    async def main() -> None:
        await asyncio.to_thread(time.sleep, 0)

    with pytest.raises(NotImplementedError):
        run_virtual(main())


def test_the_pace_allows_randomized_tests() -> None:
    async def main() -> None:
        for _ in range(20_000):
            await asyncio.sleep(0.01)

    began = time.process_time()
    run_virtual(main())
    # About 5 µs each on a slow core; the bound catches a system call per turn on a busy one.
    assert time.process_time() - began < 2
