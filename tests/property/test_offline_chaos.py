"""Whatever the network does and the verifier is: the text, its end and its deltas are right."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from offline_world import MODEL, PLANS, World, later, of, world

from draftwire.testing.clock import run_virtual
from edge_client import Delta, Kind
from edge_client.drafters.table import TableDrafter
from edge_client.tentative import Shown

OPTIONS: list[dict[str, Any]] = [
    {"stop": " kobe"},
    {"logprobs": True},
    {"prompt_lookup": True},
    {"show_drafts": True},
    {"temperature": 0.8, "seed": 5},
    {"frequency_penalty": 0.5},
    {"min_tokens": 60},
]


def narrow(rng: random.Random) -> dict[str, int]:
    return {"max_pending": rng.choice([4, 8, 256]), "max_credit": rng.choice([3, 64, 256])}


async def chaos(rng: random.Random, w: World, other: World) -> None:
    """The network and the verifier, until this is cancelled."""

    def cut() -> None:
        for link in w.transport.links:
            link.cut()

    def fall_silent() -> None:
        w.computing.clear()
        later(rng.choice([1.0, 6.0, 20.0]), w.computing.set)

    acts: list[Callable[[], object]] = [
        w.leave,
        lambda: w.leave(silently=True),
        w.come_back,
        w.come_back,
        cut,
        fall_silent,
        lambda: w.become(other),
    ]
    while True:
        await asyncio.sleep(rng.choice([0.005, 0.05, 0.2, 1.0, 7.0]))
        rng.choice(acts)()


def shown_of(deltas: list[Delta]) -> Shown:
    """What they add up to; each says what is true of the text it is applied to."""
    shown = Shown()
    for delta in deltas:
        ids = [token.id for token in delta.tokens]
        if delta.kind is Kind.RETRACTED:
            assert shown.tentative.endswith(delta.text)
            assert shown.tentative_token_ids[-len(ids) :] == ids
        elif delta.kind is Kind.COMMITTED:
            short = min(len(shown.tentative), len(delta.text))
            assert shown.tentative[:short] == delta.text[:short]
        shown.apply(delta)
    return shown


async def one(seed: int) -> None:
    rng = random.Random(seed)
    drafter = TableDrafter(
        MODEL.perturbed(rng.choice([0.0, 0.2, 0.5]), seed=1),
        draft_time_s=rng.choice([0.001, 0.01, 0.05]),
    )
    async with world(drafter, **narrow(rng)) as w, world(**narrow(rng)) as other:
        options: dict[str, Any] = {"offline_tokens": rng.choice([1, 3, 20, 200])}
        for some in rng.sample(OPTIONS, 2):
            options |= some
        plain = options | {"offline_tokens": 0, "show_drafts": False}
        undisturbed = await w.stream(PLANS["cloud alone"], **plain)
        await undisturbed.read()
        stream = await w.stream(rng.choice([*PLANS.values(), None]), **options)
        going_on = asyncio.create_task(chaos(rng, w, other))

        def calm_down() -> None:
            going_on.cancel()
            w.computing.set()
            w.come_back()

        later(rng.choice([2.0, 4.0]), calm_down)
        reads_slowly, deltas = rng.random() < 0.3, list[Delta]()
        async for delta in stream:
            deltas.append(delta)
            await asyncio.sleep(rng.random() * 0.1 * reads_slowly)
        going_on.cancel()
        assert shown_of(deltas).text == stream.summary.text == undisturbed.summary.text
        assert stream.summary.token_ids == undisturbed.summary.token_ids
        assert stream.summary.finish_reason is undisturbed.summary.finish_reason
        assert len(stream.summary.logprobs) == len(undisturbed.summary.logprobs)
        assert stream.summary.retracted == len(of(Kind.RETRACTED, deltas))


@pytest.mark.parametrize("seed", range(8))
def test_the_text_is_as_if_nothing_had_happened(seed: int) -> None:
    run_virtual(one(seed), timeout_s=1000)


@pytest.mark.slow
def test_and_so_are_five_hundred() -> None:
    for seed in range(8, 508):
        run_virtual(one(seed), timeout_s=1000)
