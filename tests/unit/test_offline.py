"""The draft goes on alone while the cloud is away, on virtual time."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable

import pytest
from offline_world import (
    MODEL,
    PLANS,
    TEXT,
    WORDS,
    later,
    of,
    on_virtual_time,
    read,
    world,
)
from virtual_client import PROMPT, TOKENIZER, serving

from draftwire.errors import InvalidRequest, LinkLost
from draftwire.testing.clock import run_virtual
from draftwire.types import FinishReason
from edge_client import AsyncEdgeClient, Delta, Kind, Origin, reduce
from edge_client.drafters.table import TableDrafter
from edge_client.plan import FixedController, Plan

# ------------------------------------------------------------------ away and back


@pytest.mark.parametrize("plan", [*PLANS.values(), None], ids=[*PLANS, "adaptive"])
@on_virtual_time
async def test_drafts_go_on_alone_and_are_verified_when_the_cloud_is_back(
    plan: Plan | None,
) -> None:
    async with world() as w:
        stream = await w.stream(plan)
        back = functools.partial(later, 2.0, w.come_back)
        deltas = await read(stream, {20: lambda: (w.leave(), back())})
        alone = of(Kind.UNVERIFIED, deltas)
        committed = of(Kind.COMMITTED, deltas)
        assert committed == TEXT
        assert reduce(deltas) == stream.summary.text == WORDS
        at = committed.index(alone[0], 20)
        assert alone == TEXT[at : at + 20]  # as far as it may go, and all of it right
        assert {
            token.origin for d in deltas if d.kind is Kind.UNVERIFIED for token in d.tokens
        } == {Origin.DRAFT}
        assert not of(Kind.RETRACTED, deltas)
        assert stream.summary.retracted == 0
        assert 0 < stream.summary.unverified <= 20
        assert stream.summary.drafted >= 20  # sent like any others, whatever the plan
        judged = [t for d in deltas if d.kind is Kind.COMMITTED for t in d.tokens][at : at + 20]
        assert Origin.ACCEPTED in {token.origin for token in judged}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@on_virtual_time
async def test_what_the_target_would_not_have_written_is_retracted(plan: Plan) -> None:
    async with world(TableDrafter(MODEL, draft_time_s=0.002, always_wrong=True)) as w:
        stream = await w.stream(plan, offline_tokens=13)
        back = functools.partial(later, 2.0, w.come_back)
        deltas = await read(stream, {20: lambda: (w.leave(), back())})
        assert of(Kind.COMMITTED, deltas) == TEXT
        assert reduce(deltas) == WORDS
        taken_back = of(Kind.RETRACTED, deltas)
        assert taken_back == of(Kind.UNVERIFIED, deltas)
        assert len(taken_back) == stream.summary.retracted == 13


@pytest.mark.parametrize("show_drafts", [False, True])
@on_virtual_time
@pytest.mark.slow
async def test_cuts_at_any_moment_change_nothing_of_the_text(show_drafts: bool) -> None:
    async with world(TableDrafter(MODEL.perturbed(0.3, seed=1), draft_time_s=0.002)) as w:

        def cut(seconds: float) -> Callable[[], None]:
            return lambda: (w.leave(), later(seconds, w.come_back))[1]

        for plan in PLANS.values():
            for first in (0, 1, 7):
                stream = await w.stream(plan, show_drafts=show_drafts, stop=" kobe")
                cuts = {first: cut(0.3), 20: cut(0.05)}
                deltas = await read(stream, cuts)
                assert reduce(deltas) == stream.summary.text == WORDS[: WORDS.index(" kobe")]
                assert stream.summary.retracted == len(of(Kind.RETRACTED, deltas))


@on_virtual_time
async def test_no_frame_is_larger_than_the_verifier_takes() -> None:
    async with world(max_pending=8) as w:
        stream = await w.stream(PLANS["waiting"], offline_tokens=40)
        back = functools.partial(later, 2.0, w.come_back)
        deltas = await read(stream, {10: lambda: (w.leave(), back())})
        assert len(of(Kind.UNVERIFIED, deltas)) == 40
        assert of(Kind.COMMITTED, deltas) == TEXT
        assert stream.summary.streams >= 3


@on_virtual_time
async def test_an_app_can_begin_without_the_cloud() -> None:
    async with world() as w:
        w.leave()
        later(1.0, w.come_back)
        deltas = await read(await w.stream(), {})
        assert of(Kind.UNVERIFIED, deltas) == TEXT[:20]
        assert deltas[0].kind is Kind.UNVERIFIED
        assert reduce(deltas) == WORDS


@pytest.mark.parametrize("k", [0, 4, None])
@on_virtual_time
async def test_even_one_that_never_reached_it(k: int | None) -> None:
    async with world() as w:
        describe = w.transport.describe
        w.hide()
        w.leave()
        with pytest.raises(LinkLost):
            await w.client.generate(PROMPT).read()
        later(1.0, w.come_back)
        options = {"max_tokens": len(TEXT), "offline_tokens": 20, "num_draft_tokens": k}
        deltas = [delta async for delta in w.client.generate(PROMPT, **options)]
        assert deltas[0].kind is Kind.UNVERIFIED
        assert reduce(deltas) == WORDS
        w.leave()
        later(1.0, w.come_back)
        chat = w.client.chat()
        first = [delta async for delta in await chat.send("hi", **options)]
        assert first[0].kind is Kind.UNVERIFIED
        w.transport.describe = describe  # type: ignore[method-assign]
        assert await (await chat.send("and", **options)).read()
        assert len(chat.messages) == 4


@on_virtual_time
async def test_where_drafts_are_looked_up_the_model_is_asked_when_the_cloud_can_not_be() -> None:
    async with world() as w:
        stream = await w.stream(prompt_lookup=True)
        stream._controller = FixedController(PLANS["cloud alone"])
        back = functools.partial(later, 2.0, w.come_back)
        deltas = await read(stream, {20: lambda: (w.leave(), back())})
        assert len(of(Kind.UNVERIFIED, deltas)) == 20
        assert reduce(deltas) == WORDS


@on_virtual_time
async def test_drafts_go_on_while_a_connection_is_neither_made_nor_refused() -> None:
    async with world() as w:
        stream = await w.stream(PLANS["waiting"])
        later(3.0, w.come_back)
        last, deltas = 0.0, []
        async for delta in stream:
            deltas.append(delta)
            if delta.kind is Kind.UNVERIFIED:
                last = asyncio.get_running_loop().time()
            if len(stream.shown.token_ids) >= 20 and not last:
                w.leave(silently=True)
        assert last < 1.0
        assert len(of(Kind.UNVERIFIED, deltas)) == 20
        assert reduce(deltas) == WORDS


@on_virtual_time
async def test_a_cancel_does_not_wait_for_a_connection() -> None:
    async with world() as w:
        stream = await w.stream(PLANS["waiting"])
        later(3.0, stream.cancel)
        await read(stream, {20: functools.partial(w.leave, silently=True)})
        assert asyncio.get_running_loop().time() == pytest.approx(3.0)
        assert stream.summary.finish_reason is FinishReason.CANCELLED
        w.come_back()
        assert await (await w.stream()).read() == WORDS


@on_virtual_time
async def test_an_app_that_reads_slowly_gets_the_same() -> None:
    async with world() as w:
        stream = await w.stream(PLANS["flowing"])
        deltas: list[Delta] = []
        async for delta in stream:
            deltas.append(delta)
            if len(stream.shown.token_ids) in range(20, 26):
                w.leave()
                later(0.3, w.come_back)
            await asyncio.sleep(0.2)
        assert reduce(deltas) == WORDS


# ------------------------------------------------------------------ it does not come back


@on_virtual_time
async def test_when_patience_ends_the_partial_result_says_what_is_verified() -> None:
    async with world() as w:
        stream = await w.stream(PLANS["waiting"])
        with pytest.raises(LinkLost):
            await read(stream, {20: w.leave})
        shown = stream.shown
        said = len(shown.token_ids)
        assert said >= 20
        assert shown.token_ids == TEXT[:said]
        assert shown.tentative_token_ids == TEXT[said : said + 20]
        assert WORDS.startswith(shown.text)
        assert shown.text == shown.final + shown.tentative
        with pytest.raises(InvalidRequest, match="not ended"):
            _ = stream.summary


@on_virtual_time
async def test_a_cancel_takes_back_what_was_not_verified() -> None:
    async with world() as w:
        stream = await w.stream(PLANS["flowing"])
        back = functools.partial(later, 2.0, stream.cancel)
        deltas = await read(stream, {20: lambda: (w.leave(), back())})
        assert stream.summary.finish_reason is FinishReason.CANCELLED
        assert list(stream.summary.token_ids) == of(Kind.COMMITTED, deltas)
        assert reduce(deltas) == stream.summary.text
        assert len(of(Kind.RETRACTED, deltas)) == stream.summary.retracted == 20


@on_virtual_time
async def test_whoever_stops_reading_meanwhile_leaves_nothing_running() -> None:
    async with world() as w:
        stream = await w.stream(PLANS["waiting"])
        async for delta in stream:
            if delta.kind is Kind.UNVERIFIED:
                break
            w.leave()
        await stream.close()
        assert stream.summary.finish_reason is FinishReason.CANCELLED
        w.come_back()
        assert await (await w.stream()).read() == WORDS


# ------------------------------------------------------------------ what is asked for


@on_virtual_time
async def test_without_the_option_the_device_waits_and_a_stream_has_final_text_only() -> None:
    async with world() as w:
        stream = await w.stream(PLANS["waiting"], offline_tokens=0)
        back = functools.partial(later, 2.0, w.come_back)
        deltas = await read(stream, {20: lambda: (w.leave(), back())})
        assert {delta.kind for delta in deltas} == {Kind.COMMITTED}
        assert stream.summary.unverified == 0
        assert stream.summary.streams > 1


@on_virtual_time
async def test_drafts_are_shown_while_a_verdict_is_out() -> None:
    async with world() as w:
        stream = await w.stream(PLANS["waiting"], offline_tokens=0, show_drafts=True)
        deltas = await read(stream, {})
        assert {delta.kind for delta in deltas} == {Kind.COMMITTED, Kind.DRAFTED}
        assert reduce(deltas) == WORDS
        drafted = next(i for i, delta in enumerate(deltas) if delta.kind is Kind.DRAFTED)
        following = [delta for delta in deltas[drafted:] if delta.kind is Kind.COMMITTED]
        assert following[0].text.startswith(deltas[drafted].text)


@on_virtual_time
async def test_it_is_refused_without_a_draft_model() -> None:
    async with world() as w:
        bare = AsyncEdgeClient(w.transport, TOKENIZER)
        for options in ({}, {"prompt_lookup": True}):
            with pytest.raises(InvalidRequest, match="no draft model"):
                bare.generate(PROMPT, offline_tokens=5, **options)
        with pytest.raises(InvalidRequest, match="offline_tokens"):
            w.client.generate(PROMPT, offline_tokens=-1)


@pytest.mark.slow
def test_a_generation_that_is_cancelled_at_any_moment_has_ended() -> None:
    async def one(turns: int) -> None:
        async with serving(MODEL, drafters=1) as (client, engine):
            stream = client.generate(PROMPT, max_tokens=8, num_draft_tokens=2)
            reading = asyncio.create_task(stream.read())
            for _ in range(turns):
                await asyncio.sleep(0)
            reading.cancel()
            await asyncio.wait([reading])
            if stream._reading._generation is not None and reading.cancelled():
                assert stream.summary.finish_reason is FinishReason.CANCELLED
            assert (await client.generate(PROMPT, max_tokens=1).read()) is not None
            await asyncio.sleep(1)
            assert not engine.active

    for turns in range(120):
        run_virtual(one(turns))
