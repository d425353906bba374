"""Streams to engine on virtual time: what one client does never reaches another."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, ParamSpec

import pytest

from cloud_verifier.channel import UNREAD_FRAMES
from cloud_verifier.engine import Arrival, Departure, Engine, EngineConfig
from cloud_verifier.pace import StreamBounds
from cloud_verifier.quotas import Account, Quota
from cloud_verifier.service import Step, VerifierService
from cloud_verifier.table_target import TableTarget
from draftwire.errors import (
    DeadlineExceeded,
    Draining,
    InvalidRequest,
    ProtocolViolation,
    QuotaExceeded,
    ServerFull,
    SlowReader,
    Unavailable,
)
from draftwire.testing.clock import run_virtual
from draftwire.testing.table import TableModel
from draftwire.types import (
    Cancel,
    ClientFrame,
    Draft,
    Finished,
    FinishReason,
    History,
    Open,
    Opened,
    ServerFrame,
    ServingLimits,
    StopRules,
    Verdict,
)

P = ParamSpec("P")

MODEL = TableModel(vocabulary_size=50, states=256, seed=3)
PROMPT = (5, 6, 7)
PASS_S = 0.01


def on_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        run_virtual(test(*args, **kwargs), timeout_s=10_000)

    return run


class Serving:
    """A running service whose passes take 10 ms and can be held up or made to fail."""

    def __init__(
        self,
        max_pending: int = 20,
        max_credit: int = 60,
        num_blocks: int = 256,
        bounds: StreamBounds | None = None,
        **config: Any,
    ) -> None:
        limits = ServingLimits(max_context=400, max_pending=max_pending, max_credit=max_credit)
        clock = asyncio.get_running_loop().time
        target = TableTarget(MODEL, limits=limits, num_blocks=num_blocks)
        self.engine = Engine(target, EngineConfig(**config), clock)
        self.service = VerifierService(self.engine, self._compute, clock, bounds)
        self.handovers: list[int] = []
        self.fault: Exception | None = None
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()

    async def _compute(self, step: Step, arrivals: Sequence[Arrival]) -> list[Departure]:
        self.handovers.append(len(arrivals))
        departures = step(arrivals)
        await asyncio.sleep(PASS_S)
        await self.may_go_on.wait()
        if self.fault is not None:
            raise self.fault
        return departures

    async def settle(self) -> None:
        """Let everything that is under way happen."""
        await asyncio.sleep(50 * PASS_S)


@contextlib.asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[Serving]:
    world = Serving(**options)
    running = asyncio.create_task(world.service.run())
    try:
        yield world
    finally:
        running.cancel()
        await asyncio.wait([running])


class Client:
    """One stream. What it is told to send, it sends; it reads when asked to."""

    def __init__(
        self,
        world: Serving,
        *frames: ClientFrame,
        owner: str = "",
        account: Account | None = None,
    ) -> None:
        self.taken = 0
        self._frames: asyncio.Queue[ClientFrame | Exception | None] = asyncio.Queue()
        self._stream = world.service.decode(self._outgoing(), owner, account)
        self.send(*frames)

    async def _outgoing(self) -> AsyncIterator[ClientFrame]:
        while (frame := await self._frames.get()) is not None:
            if isinstance(frame, Exception):
                raise frame
            self.taken += 1
            yield frame

    def send(self, *frames: ClientFrame | Exception | None) -> None:
        """Frames; an exception breaks the stream, None half-closes it."""
        for frame in frames:
            self._frames.put_nowait(frame)

    async def read(self) -> ServerFrame:
        return await anext(self._stream)

    async def rest(self) -> list[ServerFrame]:
        """What comes until the stream ends."""
        return [frame async for frame in self._stream]

    async def leave(self) -> None:
        """The stream's handler ends, as gRPC ends it when a client has gone."""
        await self._stream.aclose()


def opening(name: int = 1, **changes: Any) -> Open:
    return Open(
        session_id=name.to_bytes(16),
        attempt=changes.pop("attempt", 1),
        generation=1,
        start=len(PROMPT),
        history=History(tokens=PROMPT),
        vocabulary_fingerprint=TableTarget(MODEL).card.target.vocabulary_fingerprint,
        **changes,
    )


def most(tokens: int) -> StopRules:
    return StopRules(max_tokens=tokens)


def go(credit: int = 60) -> Draft:
    return Draft(base=len(PROMPT), epoch=0, credit=credit)


def text(frames: list[ServerFrame]) -> list[int]:
    return [token for frame in frames if isinstance(frame, Verdict) for token in frame.next]


# ------------------------------------------------------------------ one stream


@on_virtual_time
async def test_a_stream_carries_one_generation_and_ends_with_it() -> None:
    async with serving() as world:
        frames = await Client(world, opening(stop=most(9)), go()).rest()
        assert isinstance(frames[0], Opened)
        assert text(frames) == MODEL.generate(PROMPT, 9)
        assert isinstance(frames[-1], Finished)
        await world.settle()
        assert len(world.engine.idle) == 1
        assert not world.engine.active


@on_virtual_time
async def test_a_frame_before_open_is_a_violation() -> None:
    async with serving() as world:
        with pytest.raises(ProtocolViolation):
            await Client(world, go()).read()


@on_virtual_time
async def test_a_second_open_on_a_stream_is_a_violation() -> None:
    async with serving() as world:
        client = Client(world, opening(), opening(attempt=2))
        assert isinstance(await client.read(), Opened)
        with pytest.raises(ProtocolViolation):
            await client.read()
        await world.settle()
        assert not world.engine.active


@on_virtual_time
async def test_rule_23_half_closing_ends_the_stream_and_detaches_the_session() -> None:
    async with serving() as world:
        client = Client(world, opening(), go())
        assert isinstance(await client.read(), Opened)
        client.send(None)
        frames = await client.rest()
        assert not any(isinstance(frame, Finished) for frame in frames)
        await world.settle()
        assert not world.engine.active
        assert len(world.engine.idle) == 1
        assert not world.engine.has_work


@on_virtual_time
async def test_rule_23_a_half_closed_stream_is_detached_though_nobody_reads_it() -> None:
    async with serving() as world:
        client = Client(world, opening(), go())
        assert isinstance(await client.read(), Opened)
        client.send(None)
        await world.settle()
        assert not world.engine.active
        await client.leave()


@on_virtual_time
async def test_half_closing_without_a_frame_ends_the_stream() -> None:
    async with serving() as world:
        client = Client(world)
        client.send(None)
        assert await client.rest() == []


@on_virtual_time
async def test_a_frame_that_can_not_be_decoded_ends_the_stream_with_its_error() -> None:
    async with serving() as world:
        client = Client(world, opening(), go(credit=1))
        await client.read()
        client.send(InvalidRequest("draft holds a token id outside the range"))
        with pytest.raises(InvalidRequest):
            await client.rest()
        await world.settle()
        assert not world.engine.active


@on_virtual_time
async def test_a_stream_that_breaks_in_an_unforeseen_way_is_ended_not_forgotten() -> None:
    async with serving() as world:
        client = Client(world, opening(), go(credit=1))
        await client.read()
        client.send(ValueError("no such message"))
        with pytest.raises(ProtocolViolation, match="no such message"):
            await client.rest()
        await world.settle()
        assert not world.engine.active


@on_virtual_time
async def test_a_client_that_vanishes_leaves_no_session_in_flight() -> None:
    async with serving() as world:
        client = Client(world, opening(), go())
        await client.read()
        await client.leave()
        await world.settle()
        assert not world.engine.active
        assert world.engine.pool.held == 0
        assert not world.service._channels
        passes = len(world.handovers)
        await world.settle()
        assert len(world.handovers) == passes


@on_virtual_time
async def test_a_client_that_vanishes_while_its_pass_runs_keeps_what_was_committed() -> None:
    async with serving() as world:
        client = Client(world, opening(stop=most(4)), go(credit=1))
        await client.read()
        world.may_go_on.clear()
        await asyncio.sleep(PASS_S / 2)
        await client.leave()
        world.may_go_on.set()
        await world.settle()
        again = Client(world, opening(attempt=2, stop=most(4)))
        assert isinstance(await again.read(), Opened)
        replay = await again.read()
        assert replay == Verdict(base=3, accepted=0, next=tuple(MODEL.generate(PROMPT, 1)))
        await again.leave()


@on_virtual_time
async def test_cancelling_is_answered() -> None:
    async with serving() as world:
        client = Client(world, opening(), go(credit=1), Cancel())
        *_, end = await client.rest()
        assert isinstance(end, Finished)
        assert end.reason is FinishReason.CANCELLED


# ------------------------------------------------------------------ many streams


@on_virtual_time
async def test_what_arrives_during_a_pass_is_handed_over_at_once() -> None:
    async with serving() as world:
        world.may_go_on.clear()
        clients = [Client(world, opening(0), go())]
        first = asyncio.create_task(clients[0].read())
        await asyncio.sleep(PASS_S)
        clients += [Client(world, opening(name), go()) for name in range(1, 9)]
        reads = [first, *(asyncio.create_task(client.read()) for client in clients[1:])]
        await asyncio.sleep(PASS_S)
        world.may_go_on.set()
        await asyncio.gather(*reads)
        assert world.handovers[:2] == [2, 16]
        for client in clients:
            await client.leave()


@on_virtual_time
async def test_a_slow_reader_is_cut_off_and_nobody_else_notices() -> None:
    async with serving(max_pending=2, max_credit=2) as world:
        slow = Client(world, opening(1), go(credit=2))
        assert isinstance(await slow.read(), Opened)
        model_text = MODEL.generate(PROMPT, 200)
        for at in range(1, 150):  # drafts on without ever reading
            slow.send(Draft(base=3 + at, epoch=0, tokens=model_text[at : at + 1], credit=1))
            await asyncio.sleep(2 * PASS_S)
        assert not world.engine.active
        other = Client(world, opening(2, stop=most(2)), go(credit=2))
        assert text(await other.rest()) == MODEL.generate(PROMPT, 2)
        with pytest.raises(SlowReader) as cut:
            await slow.read()  # at once: what it did not read is gone
        assert cut.value.retryable


@on_virtual_time
async def test_what_a_slow_reader_missed_is_replayed_when_it_opens_again() -> None:
    async with serving(max_pending=2, max_credit=2) as world:
        slow = Client(world, opening(1, stop=most(120)), go(credit=2))
        await slow.read()
        for at in range(1, 90):
            slow.send(Draft(base=3 + at, epoch=0, credit=2))
            await asyncio.sleep(3 * PASS_S)
        with pytest.raises(SlowReader):
            await slow.rest()
        again = Client(world, opening(1, attempt=2, stop=most(120)))
        await again.read()
        replay = await again.read()
        assert isinstance(replay, Verdict)
        assert len(replay.next) > 60
        assert list(replay.next) == MODEL.generate(PROMPT, len(replay.next))
        await again.leave()


@on_virtual_time
async def test_a_client_that_floods_is_read_no_faster_than_the_engine_works() -> None:
    async with serving(bounds=StreamBounds(frames_at_once=1000)) as world:
        client = Client(world, opening(), *(go(credit=1) for _ in range(500)))
        reading = asyncio.create_task(client.rest())
        world.may_go_on.clear()
        await world.settle()
        assert client.taken <= 2 * UNREAD_FRAMES + 2
        taken = client.taken
        await world.settle()
        assert client.taken == taken
        world.may_go_on.set()
        await world.settle()
        assert client.taken == 501
        client.send(None)
        await reading


@on_virtual_time
async def test_frames_that_bring_no_verdict_are_read_slowly() -> None:
    bounds = StreamBounds(frames_at_once=30, frames_per_s=10.0, frames_per_verdict=5)
    async with serving(bounds=bounds) as world:
        client = Client(world, opening(), *(go(credit=1) for _ in range(500)))
        reading = asyncio.create_task(client.rest())
        await asyncio.sleep(10.05)  # in which one verdict comes, and the other drafts are stale
        assert client.taken == 30 + 100 + 5 + 1  # the last was taken, and waits
        client.send(None)
        reading.cancel()


@on_virtual_time
async def test_a_device_that_answers_every_verdict_is_not_slowed() -> None:
    bounds = StreamBounds(frames_at_once=2, frames_per_s=1e-3, frames_per_verdict=1)
    async with serving(bounds=bounds) as world:
        client = Client(world, opening(stop=most(100)), go(credit=1))
        started = asyncio.get_running_loop().time()
        assert isinstance(await client.read(), Opened)
        for length in range(1, 100):
            verdict = await client.read()
            assert isinstance(verdict, Verdict)
            client.send(Draft(base=len(PROMPT) + length, epoch=0, credit=1))
        assert asyncio.get_running_loop().time() - started < 100 * 2 * PASS_S
        await client.leave()


@on_virtual_time
async def test_a_stream_that_never_opens_is_ended() -> None:
    async with serving(bounds=StreamBounds(open_within_s=10.0)) as world:
        started = asyncio.get_running_loop().time()
        with pytest.raises(DeadlineExceeded, match="no open came"):
            await Client(world).read()
        assert asyncio.get_running_loop().time() - started == 10.0
        frames = await Client(world, opening(stop=most(3)), go()).rest()
        await asyncio.sleep(20.0)
        assert isinstance(frames[-1], Finished)


@on_virtual_time
async def test_of_too_many_streams_that_have_not_opened_the_oldest_ends() -> None:
    async with serving(bounds=StreamBounds(max_unopened=3)) as world:
        silent = [Client(world) for _ in range(4)]
        reading = [asyncio.create_task(client.rest()) for client in silent]
        await asyncio.sleep(0.1)
        assert [task.done() for task in reading] == [True, False, False, False]
        with pytest.raises(ServerFull):
            await reading[0]
        assert text(await Client(world, opening(stop=most(3)), go()).rest())  # and ended the next
        assert [task.done() for task in reading] == [True, True, False, False]
        with pytest.raises(ServerFull):
            await reading[1]
        for task in reading[2:]:
            task.cancel()


# ------------------------------------------------------------------ quotas


@on_virtual_time
async def test_a_key_has_as_many_generations_as_its_quota_says() -> None:
    async with serving() as world:
        account = Account(Quota(sessions=1), 0.0)
        first = Client(world, opening(1), account=account)
        assert isinstance(await first.read(), Opened)
        with pytest.raises(QuotaExceeded) as caught:
            await Client(world, opening(2), account=account).read()
        assert caught.value.session_id == (2).to_bytes(16).hex()
        assert len(world.engine.active) == 1
        again = Client(world, opening(1, attempt=2), account=account)
        assert isinstance(await again.read(), Opened)
        await first.leave()
        await again.leave()
        other = Client(world, opening(2), account=account)
        assert isinstance(await other.read(), Opened)
        await other.leave()


@on_virtual_time
async def test_a_generation_beyond_the_quota_ends_and_goes_on_when_there_are_tokens() -> None:
    async with serving() as world:
        now = asyncio.get_running_loop().time
        account = Account(Quota(tokens_per_minute=60), now())
        client = Client(world, opening(stop=most(200)), go(), account=account)
        with pytest.raises(QuotaExceeded, match="60 tokens per minute"):
            await client.rest()
        await world.settle()
        [session] = world.engine.idle.values()
        held = len(session.tokens)
        assert 60 < held <= 63  # a minute's worth was there, and the prompt counts
        with pytest.raises(QuotaExceeded):
            await Client(world, opening(attempt=2, stop=most(200)), account=account).read()
        await asyncio.sleep(10.0)
        resumed = Client(world, opening(attempt=2, stop=most(200)), go(), account=account)
        assert isinstance(await resumed.read(), Opened)
        replay = await resumed.read()
        assert isinstance(replay, Verdict)
        assert list(replay.next) == MODEL.generate(PROMPT, held - len(PROMPT))
        await resumed.leave()


@on_virtual_time
async def test_another_keys_generation_does_not_notice() -> None:
    async with serving() as world:
        poor = Account(Quota(tokens_per_minute=5), asyncio.get_running_loop().time())
        ended = Client(world, opening(1), go(), account=poor)
        going_on = Client(world, opening(2, stop=most(50)), go(), account=Account(Quota(), 0.0))
        with pytest.raises(QuotaExceeded):
            await ended.rest()
        assert text(await going_on.rest()) == MODEL.generate(PROMPT, 50)


@on_virtual_time
async def test_beyond_its_wasted_drafts_a_keys_drafts_are_not_judged() -> None:
    async with serving() as world:
        account = Account(Quota(wasted_drafts_per_minute=5), asyncio.get_running_loop().time())
        client = Client(world, opening(stop=most(200)), account=account)
        assert isinstance(await client.read(), Opened)
        for epoch in range(6):
            at = len(PROMPT) + epoch
            wrong = MODEL.generate([*PROMPT, *MODEL.generate(PROMPT, epoch)], 1)[0] % 49 + 1
            client.send(Draft(base=at, epoch=epoch, tokens=(wrong,) * 3))
            assert isinstance(await client.read(), Verdict)
        await world.settle()
        [session] = world.engine.active.values()
        assert session.drafted == 6  # two rounds of three
        await client.leave()


@on_virtual_time
async def test_a_pass_whose_stream_is_cut_meanwhile_is_charged() -> None:
    async with serving() as world:
        now = asyncio.get_running_loop().time
        account = Account(Quota(wasted_drafts_per_minute=5), now())
        client = Client(world, opening(), account=account)
        assert isinstance(await client.read(), Opened)
        right = MODEL.generate(PROMPT, 1)[0]
        world.may_go_on.clear()
        client.send(Draft(base=len(PROMPT), epoch=0, tokens=((right + 1) % 50,) * 10))
        await world.settle()
        await client.leave()
        world.may_go_on.set()
        await world.settle()
        [session] = world.engine.idle.values()
        assert session.tokens == [*PROMPT, right]
        assert not account.may_waste(now())
        assert not world.service._left


@on_virtual_time
async def test_beyond_its_wasted_drafts_a_key_gets_none_judged_by_a_new_session() -> None:
    async with serving() as world:
        now = asyncio.get_running_loop().time
        account = Account(Quota(wasted_drafts_per_minute=1), now())
        account.used(0, 10, now())
        drafts = Draft(base=len(PROMPT), epoch=0, credit=1, tokens=(1, 2, 3))
        client = Client(world, opening(), drafts, account=account)
        assert isinstance(await client.read(), Opened)
        assert isinstance(await client.read(), Verdict)
        [session] = world.engine.active.values()
        assert session.drafted == 0
        await client.leave()


@on_virtual_time
async def test_rule_24_idle_sessions_expire_though_nothing_happens() -> None:
    async with serving(session_ttl_s=60.0) as world:
        await asyncio.sleep(1000)
        await Client(world, opening(stop=most(2)), go()).rest()
        await asyncio.sleep(59)
        assert len(world.engine.idle) == 1
        await asyncio.sleep(2)
        assert not world.engine.idle


@on_virtual_time
async def test_an_idle_service_does_nothing() -> None:
    async with serving(max_silence_s=math.inf) as world:
        client = Client(world, opening(), go(credit=1))
        await client.read()
        await client.read()
        await world.settle()
        handovers = len(world.handovers)
        await asyncio.sleep(5000)
        assert len(world.handovers) == handovers
        await client.leave()


@on_virtual_time
async def test_cached_kv_expires_though_nothing_happens_and_at_one_wake_up() -> None:
    async with serving(session_ttl_s=60.0, max_retained=0) as world:
        await Client(world, opening(stop=most(40)), go()).rest()
        await world.settle()
        assert world.engine.pool.cached > 0
        handovers = len(world.handovers)
        await asyncio.sleep(58)
        assert len(world.handovers) == handovers
        await asyncio.sleep(5)
        assert len(world.handovers) == handovers + 1
        assert world.engine.pool.free == world.engine.pool.num_blocks


@on_virtual_time
async def test_kv_that_a_silent_device_holds_is_taken_in_time_and_no_handover_is_idle() -> None:
    async with serving(num_blocks=8, max_credit=120) as world:
        silent = Client(world, opening(1, stop=most(100)), go(60))
        others = [Client(world, opening(name, stop=most(100)), go(100)) for name in (2, 3)]
        reads = [asyncio.create_task(client.rest()) for client in (silent, *others)]
        await asyncio.sleep(10)
        assert [read.done() for read in reads] == [False, True, True]
        silent.send(Draft(base=63, epoch=0, credit=60))
        for frames in await asyncio.gather(*reads):
            assert text(frames) == MODEL.generate(PROMPT, 100)
        passes = sum(isinstance(frame, Verdict) for read in reads for frame in read.result())
        assert len(world.handovers) < passes + 60
        handovers = len(world.handovers)
        await asyncio.sleep(100)
        assert len(world.handovers) <= handovers + 1


# ------------------------------------------------------------------ the end of it


@on_virtual_time
async def test_when_the_engine_stops_every_stream_is_told() -> None:
    async with serving() as world:
        clients = [Client(world, opening(name), go()) for name in range(3)]
        for client in clients:
            await client.read()
    for client in clients:
        with pytest.raises(Unavailable) as stopped:
            await client.rest()
        assert stopped.value.retryable


@on_virtual_time
async def test_a_fault_of_the_engine_is_told_to_all_and_raised() -> None:
    world = Serving()
    running = asyncio.create_task(world.service.run())
    client = Client(world, opening(), go())
    await client.read()
    world.fault = RuntimeError("a bug")
    with pytest.raises(Unavailable):
        await client.rest()
    with pytest.raises(RuntimeError, match="a bug"):
        await running


@on_virtual_time
async def test_a_stream_that_comes_after_the_engine_has_stopped_is_refused() -> None:
    async with serving() as world:
        await world.settle()
    with pytest.raises(Unavailable):
        await Client(world, opening(), go()).read()


@on_virtual_time
async def test_draining_lets_what_is_in_flight_finish() -> None:
    async with serving() as world:
        await Client(world, opening(0, stop=most(1)), go()).rest()
        await world.settle()
        client = Client(world, opening(1, stop=most(20)), go())
        await client.read()
        draining = asyncio.create_task(world.service.drain(grace_s=60))
        await asyncio.sleep(PASS_S)
        with pytest.raises(Draining):
            await Client(world, opening(2)).read()
        assert text(await client.rest()) == MODEL.generate(PROMPT, 20)
        await draining
        assert asyncio.get_running_loop().time() < 1.0  # and waits no longer


@on_virtual_time
async def test_draining_hands_back_what_did_not_finish_in_time() -> None:
    async with serving() as world:
        client = Client(world, opening(), go(credit=1))
        await client.read()
        await client.read()
        await world.service.drain(grace_s=5)
        assert asyncio.get_running_loop().time() >= 5
        with pytest.raises(Draining) as handed_back:
            await client.rest()
        assert handed_back.value.retryable
        assert handed_back.value.remedy


@on_virtual_time
async def test_draining_an_idle_verifier_takes_no_time() -> None:
    async with serving() as world:
        await world.service.drain(grace_s=60)
        assert asyncio.get_running_loop().time() < 1.0


@on_virtual_time
async def test_draining_while_the_last_pass_ends_a_generation_still_tells_its_end() -> None:
    async with serving() as world:
        client = Client(world, opening(stop=most(1)), go())
        reading = asyncio.create_task(client.rest())
        await asyncio.sleep(PASS_S / 2)  # the pass has finished, its word is under way
        assert not world.engine.active
        await world.service.drain(grace_s=60)
        assert isinstance((await reading)[-1], Finished)


@on_virtual_time
async def test_draining_ends_when_the_engine_stops() -> None:
    async with serving() as world:
        client = Client(world, opening(), go(credit=1))
        await client.read()
        await client.read()
        draining = asyncio.create_task(world.service.drain(grace_s=60))
        await world.settle()
        assert not draining.done()
    await draining
    assert asyncio.get_running_loop().time() < 2.0
    await client.leave()


@on_virtual_time
async def test_draining_after_the_engine_has_stopped_waits_for_nothing() -> None:
    async with serving() as world:
        client = Client(world, opening(), go(credit=1))
        await client.read()
        await client.read()
    await world.service.drain(grace_s=60)
    assert asyncio.get_running_loop().time() < 1.0
    with pytest.raises(Unavailable):
        await client.rest()
