"""A generation through breaks, refusals, restarts and cancels.

Real session, service and engine, on virtual time.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, ParamSpec, TypeAlias

import pytest

from cloud_verifier.engine import Arrival, Departure, Engine
from cloud_verifier.service import Step, VerifierService
from cloud_verifier.table_target import TableTarget
from draftwire.errors import (
    DraftwireError,
    Draining,
    InternalError,
    InvalidRequest,
    LinkLost,
    ModelChanged,
    ServerFull,
    SessionGone,
    Superseded,
)
from draftwire.testing.clock import run_virtual
from draftwire.testing.memory import MemoryFaults, MemoryTransport
from draftwire.testing.table import TableModel
from draftwire.types import ClientFrame, FinishReason, Open, ServerFrame, StopRules, Verdict
from edge_client.drafters.table import TableDrafter
from edge_client.plan import FixedController, Plan
from edge_client.request import Request
from edge_client.retry import RetryPolicy
from edge_client.session import Generation, Session

P = ParamSpec("P")

MODEL = TableModel()
PROMPT = [5, 6, 7]
TEXT = MODEL.generate(PROMPT, 60)
DELAY_S, PASS_S = 0.01, 0.05
POLICY = RetryPolicy(first_wait_s=0.1, longest_wait_s=2.0, give_up_after_s=20.0)

Frames: TypeAlias = AsyncIterator[ClientFrame]
Answers: TypeAlias = AsyncGenerator[ServerFrame]
Attempt: TypeAlias = Callable[[Frames], Answers]
"""What a verifier does with a stream."""


class Verifier:
    """A verifier whose successive streams go as `script` says, and `then` when it is used up.

    `opens` are the opens of all streams, and when they were sent.
    """

    def __init__(self, model: TableModel) -> None:
        self.script: list[Attempt] = []
        self.then: Attempt = self.serve
        self.opens: list[tuple[float, Open]] = []
        self.boot(model)
        self.transport = MemoryTransport(
            self._decode, self.engine.card, MemoryFaults(delay_s=DELAY_S)
        )

    def waits(self) -> list[float]:
        """Seconds between the opens."""
        return [after - before for (before, _), (after, _) in itertools.pairwise(self.opens)]

    def boot(self, model: TableModel = MODEL) -> None:
        """Start it, or another one in its place that knows nothing."""
        self.clock = asyncio.get_running_loop().time
        self.engine = Engine(TableTarget(model), clock=self.clock)
        self.service = VerifierService(self.engine, self._compute, self.clock)
        self.running = asyncio.create_task(self.service.run())

    async def halt(self) -> None:
        self.running.cancel()
        await asyncio.wait([self.running])

    async def restart(self, model: TableModel = MODEL) -> None:
        """The process ends with all its streams, and another begins."""
        await self.halt()
        for link in self.transport.links:
            await link.stop()
            link.cut()
        self.transport.links.clear()
        self.boot(model)

    async def _compute(self, step: Step, arrivals: Sequence[Arrival]) -> list[Departure]:
        departures = step(arrivals)
        await asyncio.sleep(PASS_S)
        return departures

    async def _decode(self, frames: Frames) -> Answers:
        attempt = self.script.pop(0) if self.script else self.then
        async with contextlib.aclosing(attempt(self._noted(frames))) as answers:
            async for answer in answers:
                yield answer

    async def _noted(self, frames: Frames) -> Frames:
        async for frame in frames:
            if isinstance(frame, Open):
                self.opens.append((self.clock() - DELAY_S, frame))
            yield frame

    # ---- what a stream may be like

    async def serve(self, frames: Frames) -> Answers:
        """As usual."""
        async with contextlib.aclosing(self.service.decode(frames)) as answers:
            async for answer in answers:
                yield answer

    def refuse(self, error: Callable[[], DraftwireError]) -> Attempt:
        """An error for an answer."""

        async def attempt(frames: Frames) -> Answers:
            await anext(frames)
            raise error()
            yield

        return attempt

    def break_after(self, count: int) -> Attempt:
        """As usual, for that many frames."""

        async def attempt(frames: Frames) -> Answers:
            async with contextlib.aclosing(self.serve(frames)) as answers:
                for _ in range(count):
                    yield await anext(answers)
            raise LinkLost("the link broke")

        return attempt

    def fall_silent_after(self, count: int, told_after_s: float = math.inf) -> Attempt:
        """As usual, for that many frames; then nothing comes out, and at last that it broke."""

        async def attempt(frames: Frames) -> Answers:
            async with contextlib.aclosing(self.serve(frames)) as answers:
                for _ in range(count):
                    yield await anext(answers)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(None if told_after_s == math.inf else told_after_s):
                        await asyncio.Event().wait()
                raise LinkLost("no answer to pings")

        return attempt

    async def misspeak(self, frames: Frames) -> Answers:
        """As usual, but for one verdict on a position that is not the client's."""
        async with contextlib.aclosing(self.serve(frames)) as answers:
            async for answer in answers:
                wrong = isinstance(answer, Verdict) and answer.base > len(PROMPT) + 3
                yield replace(answer, base=answer.base + 1) if wrong else answer


def lost() -> LinkLost:
    return LinkLost("the link broke")


def on_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        run_virtual(test(*args, **kwargs), timeout_s=1000)

    return run


@contextlib.asynccontextmanager
async def verifying(model: TableModel = MODEL) -> AsyncIterator[Verifier]:
    verifier = Verifier(model)
    try:
        yield verifier
    finally:
        await verifier.transport.close()
        await verifier.halt()


def session_with(verifier: Verifier, policy: RetryPolicy = POLICY) -> Session:
    return Session(
        verifier.transport,
        verifier.engine.card,
        fingerprint=verifier.engine.card.target.vocabulary_fingerprint,
        drafter=TableDrafter(MODEL, draft_time_s=0.005),
        retry=policy,
        clock=verifier.clock,
    )


def begin(session: Session, plan: Plan = Plan.waiting(3)) -> Generation:  # noqa: B008
    stop = StopRules(max_tokens=len(TEXT))
    return session.generate(PROMPT, FixedController(plan), Request(stop=stop))


async def read(generation: Generation, then: Callable[[int], object] | None = None) -> list[int]:
    """Run to the end; `then` is told how many tokens there are, at each commit."""
    heard: list[int] = []
    async with contextlib.aclosing(generation.run()) as commits:
        async for batch in commits:
            heard += [token for token, _ in batch]
            if then is not None:
                then(len(heard))
    return heard


def reason(generation: Generation) -> FinishReason:
    assert generation.finished is not None
    return generation.finished.reason


def once(count: int, do: Callable[[], object]) -> Callable[[int], None]:
    """Do something once, when there are that many tokens."""
    pending = [do]

    def then(tokens: int) -> None:
        if tokens >= count and pending:
            pending.pop()()

    return then


# ------------------------------------------------------------------ back-off


@on_virtual_time
async def test_waits_double_up_to_the_longest_each_shortened_by_up_to_half() -> None:
    async with verifying() as verifier:
        verifier.script = [verifier.refuse(lost)] * 9
        generation = begin(session_with(verifier, replace(POLICY, give_up_after_s=100)))
        assert await read(generation) == TEXT
        wholes = [min(2.0, 0.1 * 2**i) for i in range(9)]
        for waited, whole in zip(verifier.waits(), wholes, strict=True):
            assert whole / 2 <= waited - 2 * DELAY_S <= whole
        assert generation.opens == 10


@on_virtual_time
async def test_clients_that_broke_together_do_not_come_back_together() -> None:
    async with verifying() as verifier:
        verifier.script = [verifier.refuse(lost)] * 20
        await asyncio.gather(*(read(begin(session_with(verifier))) for _ in range(20)))
        again = {round(at, 4) for at, _ in verifier.opens[20:]}
        assert len(again) > 10  # of 500; fails by chance once in 10¹⁴ runs


@on_virtual_time
async def test_when_patience_ends_the_last_error_is_raised() -> None:
    async with verifying() as verifier:
        numbers = itertools.count(1)
        verifier.then = verifier.refuse(lambda: LinkLost(f"break {next(numbers)}"))
        generation = begin(session_with(verifier))
        with pytest.raises(LinkLost) as last:
            await read(generation)
        assert last.value.message == f"break {generation.opens}"
        assert POLICY.give_up_after_s < verifier.clock() < POLICY.give_up_after_s + 2.1
        assert generation.finished is None


@on_virtual_time
async def test_a_break_that_is_noticed_when_patience_has_ended_is_tried_once_more() -> None:
    async with verifying() as verifier:
        verifier.script = [verifier.fall_silent_after(4, told_after_s=30.0)]  # as gRPC's pings do
        generation = begin(session_with(verifier))
        assert await read(generation) == TEXT
        assert generation.opens == 2


@on_virtual_time
async def test_any_news_renews_patience_and_shortens_the_waits() -> None:
    async with verifying() as verifier:
        verifier.then = verifier.break_after(2)  # opened, one verdict
        generation = begin(session_with(verifier, replace(POLICY, give_up_after_s=0.5)))
        assert await read(generation) == TEXT
        assert generation.opens > 10
        assert verifier.clock() > 1.0
        assert max(verifier.waits()) < 0.1 + 4 * DELAY_S + 2 * PASS_S


@on_virtual_time
async def test_a_generation_that_failed_leaves_a_session_that_goes_on_where_it_stood() -> None:
    async with verifying() as verifier:
        session = session_with(verifier, replace(POLICY, give_up_after_s=1))
        verifier.script = [verifier.break_after(4)] + [verifier.refuse(lost)] * 20
        with pytest.raises(LinkLost):
            await read(begin(session))
        said = session.tokens[len(PROMPT) :]
        assert said
        assert said == TEXT[: len(said)]
        verifier.script = []
        assert await read(begin(session)) == TEXT


# ------------------------------------------------------------------ what is tried again, and how


@on_virtual_time
async def test_after_a_break_only_the_end_of_the_history_is_sent_and_nothing_comes_twice() -> None:
    async with verifying() as verifier:
        verifier.script = [verifier.break_after(6), verifier.break_after(6)]
        assert await read(begin(session_with(verifier))) == TEXT
        first, *later = [opening for _, opening in verifier.opens]
        assert first.history.prefix_length == 0
        for opening in later:
            assert opening.history.prefix_length > len(PROMPT)
            assert opening.history.tokens == ()
        assert [opening.attempt for _, opening in verifier.opens] == [1, 2, 3]


@on_virtual_time
async def test_a_verifier_that_lost_the_session_gets_the_whole_history_at_once() -> None:
    async with verifying() as verifier:
        generation = begin(session_with(verifier))
        restarts: list[asyncio.Task[None]] = []
        restart = once(20, lambda: restarts.append(asyncio.create_task(verifier.restart())))
        assert await read(generation, restart) == TEXT
        (_, first), (_, by_hash), (_, whole) = verifier.opens
        assert by_hash.history.prefix_length >= 20
        assert whole.history.prefix_length == 0
        assert list(whole.history.tokens) == [*PROMPT, *TEXT][: len(whole.history.tokens)]
        assert (whole.start, whole.generation) == (first.start, first.generation)
        assert verifier.waits()[1] == pytest.approx(2 * DELAY_S + PASS_S)  # no pause for this


@on_virtual_time
async def test_a_verifier_that_loses_even_the_whole_history_is_not_asked_for_ever() -> None:
    async with verifying() as verifier:
        verifier.then = verifier.refuse(lambda: SessionGone("gone"))
        with pytest.raises(SessionGone):
            await read(begin(session_with(verifier)))
        assert len(verifier.opens) < 25


@on_virtual_time
async def test_a_verdict_out_of_place_is_answered_by_opening_again() -> None:
    async with verifying() as verifier:
        verifier.script = [verifier.misspeak]
        generation = begin(session_with(verifier))
        assert await read(generation) == TEXT
        assert generation.opens == 2


@on_virtual_time
async def test_a_verifier_that_shuts_down_hands_over_to_the_next() -> None:
    async with verifying() as verifier:
        drains: list[asyncio.Task[None]] = []
        session = session_with(verifier)

        async def shut_down() -> None:
            await verifier.service.drain(0.0)
            await verifier.restart()

        generation = begin(session, Plan.cloud_alone())
        drain = once(20, lambda: drains.append(asyncio.create_task(shut_down())))
        assert await read(generation, drain) == TEXT
        assert generation.opens >= 2


@pytest.mark.parametrize("error", [Draining, ServerFull])
@on_virtual_time
async def test_a_verifier_that_has_no_room_is_not_pressed(error: type[DraftwireError]) -> None:
    async with verifying() as verifier:
        verifier.then = verifier.refuse(lambda: error("no room"))
        with pytest.raises(error):
            await read(begin(session_with(verifier)))
        assert len(verifier.opens) == 1


@pytest.mark.parametrize("error", [Draining, ServerFull])
@on_virtual_time
async def test_but_a_generation_under_way_waits_for_room(error: type[DraftwireError]) -> None:
    async with verifying() as verifier:
        refused = verifier.refuse(lambda: error("no room"))
        verifier.script = [verifier.break_after(4), refused, refused]
        assert await read(begin(session_with(verifier))) == TEXT


# ------------------------------------------------------------------ what is final


@pytest.mark.parametrize("error", [InvalidRequest, Superseded, ModelChanged, InternalError])
@on_virtual_time
async def test_what_another_attempt_can_not_mend_is_raised_at_once(
    error: type[DraftwireError],
) -> None:
    async with verifying() as verifier:
        verifier.script = [verifier.break_after(4), verifier.refuse(lambda: error("no"))]
        generation = begin(session_with(verifier))
        with pytest.raises(error, match="no"):
            await read(generation)
        assert len(verifier.opens) == 2


@on_virtual_time
async def test_another_model_in_the_verifiers_place_is_refused_and_what_was_said_stays() -> None:
    async with verifying() as verifier:
        session = session_with(verifier)
        generation = begin(session)
        restarts: list[asyncio.Task[None]] = []
        other = TableModel(seed=1)
        restart = once(20, lambda: restarts.append(asyncio.create_task(verifier.restart(other))))
        with pytest.raises(ModelChanged) as changed:
            await read(generation, restart)
        assert not changed.value.retryable
        said = session.tokens[len(PROMPT) :]
        assert len(said) >= 20
        assert said == TEXT[: len(said)]


# ------------------------------------------------------------------ cancel


@on_virtual_time
async def test_cancelled_before_it_runs_it_opens_no_stream() -> None:
    async with verifying() as verifier:
        generation = begin(session_with(verifier))
        generation.cancel()
        assert await read(generation) == []
        assert reason(generation) is FinishReason.CANCELLED
        assert verifier.opens == []


@on_virtual_time
async def test_cancel_during_a_wait_ends_it_at_once() -> None:
    async with verifying() as verifier:
        verifier.then = verifier.refuse(lost)
        generation = begin(session_with(verifier))
        asyncio.get_running_loop().call_at(7.77, generation.cancel)
        assert await read(generation) == []
        assert verifier.clock() == pytest.approx(7.77)
        assert reason(generation) is FinishReason.CANCELLED


@on_virtual_time
async def test_cancel_takes_the_verifiers_word_for_where_it_ended() -> None:
    async with verifying() as verifier:
        session = session_with(verifier)
        generation = begin(session)
        heard = await read(generation, once(20, generation.cancel))
        assert reason(generation) is FinishReason.CANCELLED
        assert heard == TEXT[: len(heard)] == session.tokens[len(PROMPT) :]
        assert generation.finished is not None
        assert generation.finished.usage.completion_tokens == len(heard)


@on_virtual_time
async def test_cancel_on_a_dead_link_ends_at_the_deadline() -> None:
    async with verifying() as verifier:
        verifier.script = [verifier.fall_silent_after(0)]
        generation = begin(session_with(verifier))
        asyncio.get_running_loop().call_at(1.0, generation.cancel)
        assert await read(generation) == []
        assert verifier.clock() == pytest.approx(1.0 + POLICY.cancel_timeout_s)
        assert reason(generation) is FinishReason.CANCELLED
        assert generation.opens == 1


@on_virtual_time
async def test_leaving_on_a_dead_link_ends_at_the_deadline() -> None:
    async with verifying() as verifier:
        verifier.script = [verifier.fall_silent_after(2)]
        generation = begin(session_with(verifier))
        commits = generation.run()
        await anext(commits)
        left_at = verifier.clock()
        await commits.aclose()
        assert verifier.clock() == pytest.approx(left_at + POLICY.cancel_timeout_s)
        assert reason(generation) is FinishReason.CANCELLED


@on_virtual_time
async def test_a_cancelled_task_leaves_as_whoever_stops_reading_does() -> None:
    async with verifying() as verifier:
        generation = begin(session_with(verifier))
        reading = asyncio.create_task(read(generation))
        asyncio.get_running_loop().call_at(1.0, reading.cancel)
        await asyncio.wait([reading])
        assert reading.cancelled()
        assert reason(generation) is FinishReason.CANCELLED
        assert verifier.clock() < 1.0 + 2 * DELAY_S + 2 * PASS_S + 0.01
        assert not verifier.engine.active


@on_virtual_time
async def test_a_cancelled_generation_can_be_begun_anew() -> None:
    async with verifying() as verifier:
        session = session_with(verifier)
        generation = begin(session)
        await read(generation, once(20, generation.cancel))
        assert await read(begin(session)) == TEXT
        assert verifier.opens[1][1].generation == verifier.opens[0][1].generation + 1


@on_virtual_time
async def test_a_session_runs_one_generation_at_a_time() -> None:
    async with verifying() as verifier:
        session = session_with(verifier)
        commits = begin(session).run()
        await anext(commits)
        with pytest.raises(InvalidRequest, match="in flight"):
            begin(session)
        await commits.aclose()
        assert await read(begin(session)) == TEXT
