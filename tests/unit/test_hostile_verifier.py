"""A verifier that breaks its own rules: the device ends with an error, in bounded time and room."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
from offline_world import MODEL, PROMPT_IDS, TEXT, on_virtual_time, world

from cloud_verifier.table_target import TableTarget
from draftwire.errors import (
    DraftwireError,
    InternalError,
    LimitExceeded,
    LinkLost,
    ModelChanged,
    ProtocolViolation,
    SessionGone,
)
from draftwire.testing.memory import MemoryLink
from draftwire.types import (
    ClientFrame,
    Finished,
    FinishReason,
    Opened,
    ServerFrame,
    ServingLimits,
    Timing,
    TokenLogprobs,
    Verdict,
)

CARD = TableTarget(MODEL, limits=ServingLimits(max_context=400, max_rows=9)).card
START = len(PROMPT_IDS)
OPENED = Opened(target=CARD.target, limits=CARD.limits, length=START)
LARGEST = 2**32 - 1


def verdict(base: int, *tokens: int, accepted: int = 0, **others: Any) -> Verdict:
    return Verdict(base=base, accepted=accepted, next=tokens, **others)


def saying(
    *frames: ServerFrame | Exception,
    ever: Callable[[int], ServerFrame] | None = None,
    every_s: float = 0.05,
) -> Callable[[AsyncIterator[ClientFrame]], AsyncGenerator[ServerFrame]]:
    """A verifier that says this on every stream, and then what `ever` does, or nothing."""

    async def decode(incoming: AsyncIterator[ClientFrame]) -> AsyncGenerator[ServerFrame]:
        await anext(incoming)
        for frame in frames:
            if isinstance(frame, Exception):
                raise frame
            yield frame
        for count in itertools.count():
            if ever is None:
                await asyncio.Event().wait()
            else:
                await asyncio.sleep(every_s)
                yield ever(count)

    return decode


VIOLATIONS = {
    "out of place": (OPENED, verdict(99, 1)),
    "more accepted than drafted": (OPENED, verdict(START, 1, accepted=200)),
    "of nothing": (OPENED, verdict(START)),
    "past max_tokens": (OPENED, verdict(START, *range(1, 41))),
    "past the context": (OPENED, verdict(START, *[5] * 5000)),
    "of a token beyond the vocabulary": (OPENED, verdict(START, 320)),
    "with log-probabilities nobody asked for": (
        OPENED,
        verdict(START, 1, logprobs=(TokenLogprobs(logprob=float("nan")),)),
    ),
    "finished before it began": (OPENED, Finished(reason=FinishReason.STOP, length=START - 1)),
    "finished beyond the text": (OPENED, Finished(reason=FinishReason.STOP, length=START + 1)),
}


@pytest.mark.parametrize("frames", VIOLATIONS.values(), ids=VIOLATIONS)
@pytest.mark.parametrize("offline_tokens", [0, 20])
@on_virtual_time
async def test_what_can_not_be_is_a_violation_and_not_put_up_with_for_ever(
    frames: tuple[ServerFrame, ...], offline_tokens: int
) -> None:
    async with world() as w:
        w.transport.decode = saying(*frames)
        stream = await w.stream(max_tokens=20, offline_tokens=offline_tokens)
        with pytest.raises(ProtocolViolation):
            await stream.read()
        assert stream.shown.token_ids == []
        assert 5.0 < asyncio.get_running_loop().time() < 6.0  # patience, and waits in between


ENDLESS: dict[str, Callable[[int], ServerFrame]] = {
    "verdicts of nothing": lambda _: verdict(START),
    "tokens": lambda count: verdict(START + count, 5),
}


@pytest.mark.parametrize("ever", ENDLESS.values(), ids=ENDLESS)
@on_virtual_time
async def test_frames_without_end_end(ever: Callable[[int], ServerFrame]) -> None:
    async with world() as w:
        w.transport.decode = saying(OPENED, ever=ever)
        stream = await w.stream(max_tokens=20, offline_tokens=0)
        with pytest.raises(ProtocolViolation):
            await stream.read()
        assert len(stream.shown.token_ids) <= 20


@on_virtual_time
async def test_what_an_app_does_not_read_is_not_read_for_it() -> None:
    async with world() as w:
        frames = OPENED, verdict(START, TEXT[0])
        w.transport.decode = saying(*frames, ever=lambda _: OPENED, every_s=0.0005)
        stream = await w.stream(max_tokens=20, offline_tokens=0)
        await anext(stream)
        await asyncio.sleep(1.0)
        assert stream._reading._generation is not None
        assert stream._reading._generation._inbox._events.qsize() == 1024
        await stream.close()


@pytest.mark.parametrize(
    ("error", "most"), [(SessionGone("gone"), 60), (LimitExceeded("too much"), 2)], ids=str
)
@on_virtual_time
async def test_one_that_opens_and_refuses_is_not_pressed(error: DraftwireError, most: int) -> None:
    async with world() as w:
        narrow = replace(OPENED, limits=replace(CARD.limits, max_credit=3))
        w.transport.decode = saying(narrow, error)
        stream = await w.stream(max_tokens=20, offline_tokens=0)
        with pytest.raises(type(error)):
            await stream.read()
        assert stream._reading._generation is not None
        assert stream._reading._generation.opens <= most


@on_virtual_time
async def test_another_target_is_noticed_though_the_verifier_does_not_say_so() -> None:
    async with world() as w:
        stream = await w.stream(max_tokens=20, offline_tokens=0)
        w.transport.decode = saying(OPENED, verdict(START, *TEXT[:5]), LinkLost("cut"))
        await anext(stream)
        other = replace(CARD.target, digest=b"other")
        w.transport.decode = saying(replace(OPENED, target=other), verdict(START + 5, 1))
        with pytest.raises(ModelChanged, match=b"other".hex()):
            await stream.read()
        assert stream.shown.token_ids == TEXT[:5]


@on_virtual_time
async def test_figures_that_can_not_be_change_no_text() -> None:
    async with world() as w:
        lies = Timing(
            pass_rows=LARGEST, frames=LARGEST, heard_us=LARGEST, pass_us=LARGEST, queue_us=LARGEST
        )
        limits = ServingLimits(
            max_context=LARGEST, max_pending=LARGEST, max_credit=LARGEST, max_rows=LARGEST
        )
        w.transport.decode = saying(
            replace(OPENED, limits=limits, length=LARGEST, cached=LARGEST),
            verdict(START, *TEXT[:3], timing=lies),
            verdict(START + 3, *TEXT[3:10], timing=replace(lies, frames=1)),
            InternalError("no more"),
        )
        stream = await w.stream(max_tokens=20, offline_tokens=0)
        with pytest.raises(InternalError):
            await stream.read()
        assert stream.shown.token_ids == TEXT[:10]


@on_virtual_time
async def test_a_transport_that_breaks_in_an_unforeseen_way_ends_the_generation() -> None:
    async with world() as w:
        stream = await w.stream(max_tokens=20, offline_tokens=0)
        connect = w.transport.connect

        async def receive() -> ServerFrame:
            raise OverflowError("of whatever it may be")

        @contextlib.asynccontextmanager
        async def broken(count: object = None) -> AsyncIterator[MemoryLink]:
            async with connect(count) as link:
                link.receive = receive  # type: ignore[method-assign]
                yield link

        w.transport.connect = broken  # type: ignore[method-assign]
        with pytest.raises(ProtocolViolation, match="OverflowError"):
            await stream.read()
