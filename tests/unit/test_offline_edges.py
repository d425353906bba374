"""Where going on alone meets silence, cancels, other verifiers and all that can be asked for."""

from __future__ import annotations

import asyncio
import functools
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from offline_world import (
    MODEL,
    PLANS,
    PROMPT_IDS,
    RETRY,
    TEXT,
    WORDS,
    later,
    of,
    on_virtual_time,
    read,
    world,
)
from virtual_client import PROMPT, serving

from draftwire.errors import DeadlineExceeded, InvalidRequest, LinkLost, ModelChanged
from draftwire.testing.clock import run_virtual
from draftwire.testing.table import TableModel
from draftwire.types import FinishReason
from edge_client import Delta, Kind, reduce
from edge_client.drafters.table import TableDrafter
from edge_client.endpoint.generation import streams_of
from edge_client.endpoint.requests import completion_request
from edge_client.plan import Plan
from edge_client.translation_results import TranslationUpdate

# ------------------------------------------------------------------ not quite away


@pytest.mark.parametrize("plan", [*PLANS.values(), None], ids=[*PLANS, "adaptive"])
@on_virtual_time
async def test_a_verifier_that_falls_silent_is_away_until_it_speaks_again(
    plan: Plan | None,
) -> None:
    async with world() as w:
        stream = await w.stream(plan)
        fell = asyncio.get_running_loop().create_future()

        def fall_silent() -> None:
            fell.set_result(asyncio.get_running_loop().time())
            w.computing.clear()
            later(60.0, w.computing.set)

        drafted_at, deltas = list[float](), list[Delta]()
        async for delta in stream:
            deltas.append(delta)
            if delta.kind is Kind.UNVERIFIED:
                drafted_at.append(asyncio.get_running_loop().time())
            if len(stream.shown.token_ids) >= 20 and not fell.done():
                fall_silent()
        assert RETRY.silent_after_s <= drafted_at[0] - fell.result() < RETRY.silent_after_s + 0.2
        assert len(of(Kind.UNVERIFIED, deltas)) == 20
        assert reduce(deltas) == WORDS
        assert stream.summary.streams == 1  # it was there all the time


@on_virtual_time
async def test_one_taken_for_away_while_it_reads_a_long_prompt_loses_nothing() -> None:
    async with world() as w:
        w.computing.clear()
        later(8.0, w.computing.set)
        deltas = await read(await w.stream(show_drafts=True), {})
        assert reduce(deltas) == WORDS
        assert not of(Kind.RETRACTED, deltas)


@pytest.mark.parametrize("where", ["the card", "the stream"])
@on_virtual_time
async def test_an_app_can_begin_though_nothing_is_refused(where: str) -> None:
    async with world() as w:
        if where == "the card":
            w.hide(after_s=60.0)
            stream = w.client.generate(PROMPT, max_tokens=len(TEXT), offline_tokens=20)
        else:
            stream = await w.stream()
        w.leave(silently=True)
        later(30.0, w.come_back)
        first = await anext(stream)
        assert first.kind is Kind.UNVERIFIED
        waits = 2 if where == "the card" else 1  # for the card, and then for the stream
        assert asyncio.get_running_loop().time() < waits * RETRY.silent_after_s + 0.1
        assert reduce([first, *[delta async for delta in stream]]) == WORDS


@on_virtual_time
async def test_one_that_comes_and_goes_changes_nothing_of_the_text() -> None:
    async with world(TableDrafter(MODEL.perturbed(0.3, seed=1), draft_time_s=0.002)) as w:
        going = True

        def flap() -> None:
            nonlocal going
            going = not going
            (w.come_back if going else w.leave)()
            later(0.2, flap)

        flap()
        for plan, show_drafts in (("waiting", True), ("run-on", False), ("shadow", True)):
            stream = await w.stream(PLANS[plan], show_drafts=show_drafts, stop=" kobe")
            deltas = await read(stream, {})
            assert reduce(deltas) == stream.summary.text == WORDS[: WORDS.index(" kobe")]
            assert stream.summary.streams > 1


# ------------------------------------------------------------------ cancels, deadlines, ends


@pytest.mark.parametrize("offline_tokens", [0, 20])
@pytest.mark.parametrize("where", ["the card", "the stream", "the middle"])
@pytest.mark.parametrize("how", ["cancel", "deadline", "close"])
@on_virtual_time
async def test_no_end_waits_for_a_connection(offline_tokens: int, where: str, how: str) -> None:
    async with world() as w:
        options = {"offline_tokens": offline_tokens, "timeout_s": 2.0 if how == "deadline" else 60}
        if where == "the card":
            w.hide(after_s=10.0)
            stream = w.client.generate(PROMPT, **options)
        else:
            stream = await w.stream(PLANS["waiting"], **options)
        away = functools.partial(w.leave, silently=True)
        if how == "cancel":
            later(2.0, stream.cancel)
        elif how == "close":
            later(2.0, lambda: asyncio.ensure_future(w.client.close()))
        if where != "the middle":
            away()
        expected = pytest.raises(DeadlineExceeded) if how == "deadline" else nullcontext()
        with expected:
            await read(stream, {5: away} if where == "the middle" else {})
        assert asyncio.get_running_loop().time() == pytest.approx(2.0)
        assert stream.summary.finish_reason is FinishReason.CANCELLED
        assert list(stream.summary.token_ids) == stream.shown.token_ids
        assert not stream.shown.tentative


@on_virtual_time
async def test_nor_for_the_stream_that_reads_the_prompt_for_it() -> None:
    async with world() as w:
        await w.client.card()
        w.leave(silently=True)
        first, second = w.client.samples(2, PROMPT, offline_tokens=20)
        reading = asyncio.create_task(first.read())
        later(2.0, second.cancel)
        await asyncio.sleep(0.1)
        assert await second.read() == ""
        assert asyncio.get_running_loop().time() == pytest.approx(2.0)
        first.cancel()
        await reading


@pytest.mark.parametrize("offline_tokens", [0, 20])
@on_virtual_time
async def test_a_deadline_does_not_wait_long_for_a_verifier_that_is_silent(
    offline_tokens: int,
) -> None:
    async with world() as w:
        options = {"offline_tokens": offline_tokens, "timeout_s": 20.0}
        stream = await w.stream(PLANS["waiting"], **options)
        with pytest.raises(DeadlineExceeded):
            await read(stream, {5: w.computing.clear})
        assert 20.0 < asyncio.get_running_loop().time() < 20.6
        w.computing.set()
        assert await (await w.stream()).read() == WORDS


@on_virtual_time
async def test_another_target_in_its_place_is_refused_and_what_is_shown_stays() -> None:
    other = TableModel(vocabulary_size=320, states=512, seed=9)
    async with world() as w, world(model=other) as v:
        stream = await w.stream(PLANS["waiting"])
        become = functools.partial(later, 1.0, functools.partial(w.become, v))
        with pytest.raises(ModelChanged):
            await read(stream, {20: lambda: (w.leave(), become())})
        said = len(stream.shown.token_ids)
        assert stream.shown.token_ids == TEXT[:said]
        assert len(stream.shown.tentative_token_ids) == 20


@on_virtual_time
async def test_after_a_text_that_was_given_up_a_conversation_goes_on() -> None:
    async with world() as w:
        session = await w.session()
        first = await w.stream(session=session, max_tokens=20)
        await first.read()
        prompt = [*PROMPT_IDS, *first.summary.token_ids]
        second = await w.stream(session=session, prompt=[*prompt, 5, 6])
        with pytest.raises(LinkLost):
            await read(second, {10: w.leave})
        assert second.shown.tentative
        w.come_back()
        third = await w.stream(session=session, prompt=[*prompt, 7], max_tokens=20)
        await third.read()
        assert list(third.summary.token_ids) == MODEL.generate([*prompt, 7], 20)
        assert third.summary.usage.cached_tokens > 0  # the session is the one it was


@on_virtual_time
async def test_a_long_outage_takes_no_more_memory_than_a_short_one() -> None:
    async with world() as w:
        retry = replace(RETRY, give_up_after_s=1e9)
        stream = await w.stream(session=await w.session(retry))
        reading = asyncio.create_task(stream.read())
        w.leave()
        tasks = []
        for _ in range(2):
            await asyncio.sleep(30.0)
            w.transport.links.clear()  # the test's own memory of them
            tasks.append(len(asyncio.all_tasks()))
        assert stream._reading._generation is not None
        assert stream._reading._generation.opens > 100
        assert stream._reading._generation._inbox._events.empty()
        assert abs(tasks[1] - tasks[0]) <= 2
        w.come_back()
        assert await reading == WORDS


# ------------------------------------------------------------------ other limits, other options


@pytest.mark.parametrize("k", [0, 4, 20, None])
@pytest.mark.parametrize("offline_tokens", [0, 20])
@on_virtual_time
async def test_a_verifier_of_narrower_limits_may_take_over(
    k: int | None, offline_tokens: int
) -> None:
    async with world() as w, world(max_credit=4, max_pending=4) as v:
        options = {
            "max_tokens": len(TEXT),
            "num_draft_tokens": k,
            "offline_tokens": offline_tokens,
        }
        await w.client.card()
        stream = w.client.generate(PROMPT, **options)
        deltas = await read(stream, {20: functools.partial(w.become, v)})
        assert reduce(deltas) == WORDS
        again = w.client.generate(PROMPT, **options)  # by the first one's card
        assert await again.read() == WORDS
        assert again.summary.streams <= 2


@pytest.mark.parametrize("k", [0, 4, None])
@on_virtual_time
async def test_so_may_one_whose_card_was_never_seen(k: int | None) -> None:
    async with world(max_credit=4, max_pending=4) as w:
        w.hide()
        options = {"max_tokens": len(TEXT), "num_draft_tokens": k, "offline_tokens": 20}
        assert await w.client.generate(PROMPT, **options).read() == WORDS


@pytest.mark.parametrize(
    "options",
    [
        {"regex": "[a-z ]+"},
        {"logprobs": True},
        {"min_tokens": 5},
        {"prediction": [1, 2, 3]},
        {"verify_mode": "rejection", "temperature": 1.0},
        {"frequency_penalty": 0.5, "temperature": 0.7},
        {"stop": " kobe"},
    ],
    ids=str,
)
@on_virtual_time
async def test_whatever_is_asked_for_it_may_begin_without_the_cloud(
    options: dict[str, Any],
) -> None:
    async with world(TableDrafter(MODEL.perturbed(0.3, seed=1), draft_time_s=0.002)) as w:
        options = {"max_tokens": 40, "seed": 1} | options
        with_it = w.client.generate(PROMPT, **options)
        await with_it.read()
        w.client._card = None
        w.hide()
        w.leave()
        later(1.0, w.come_back)
        stream = w.client.generate(PROMPT, offline_tokens=20, **options)
        deltas = await read(stream, {})
        assert deltas[0].kind is Kind.UNVERIFIED
        assert reduce(deltas) == stream.summary.text
        assert len(stream.summary.logprobs) == len(with_it.summary.logprobs)
        if options.get("verify_mode") != "rejection":  # else only the distribution is the same
            assert stream.summary.token_ids == with_it.summary.token_ids


@on_virtual_time
async def test_a_clients_file_may_allow_it_for_all_texts() -> None:
    async with world() as w:
        w.client._defaults = {"offline_tokens": 20, "max_tokens": 30}
        w.hide()
        w.leave()
        later(1.0, w.come_back)
        deltas = await read(await w.client.chat().send("hi"), {})
        assert deltas[0].kind is Kind.UNVERIFIED


# ------------------------------------------------------------------ what can't be taken back


def test_a_translation_has_final_text_only_whatever_the_clients_file_says() -> None:
    async def translated(**defaults: Any) -> tuple[int, ...]:
        async with serving(MODEL) as (client, _):
            client._defaults = defaults
            updates: list[TranslationUpdate] = []
            options = {"max_tokens": 30, "num_draft_tokens": 4, "stop": ()}
            async with client.translate("fr", shown=updates.append, **options) as translator:
                translator.update("the cat")
            return updates[-1].token_ids

    plain = run_virtual(translated())
    assert run_virtual(translated(show_drafts=True, offline_tokens=20)) == plain


@pytest.mark.parametrize("option", ["show_drafts", "offline_tokens"])
def test_a_translator_refuses_what_is_tentative_by_name(option: str) -> None:
    async def translated() -> None:
        async with serving(MODEL) as (client, _):
            client.translate("fr", **{option: 1})

    with pytest.raises(InvalidRequest, match=option):
        run_virtual(translated())


def test_the_endpoint_sends_final_text_only_whatever_the_clients_file_says() -> None:
    async def kinds() -> set[Kind]:
        async with serving(MODEL) as (client, _):
            client._defaults = {"show_drafts": True, "offline_tokens": 20}
            body = {"model": "", "prompt": PROMPT, "max_tokens": 30, "num_draft_tokens": 4}
            [stream] = streams_of(client, completion_request(body))
            return {delta.kind async for delta in stream}

    assert run_virtual(kinds()) == {Kind.COMMITTED}
