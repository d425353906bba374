"""What the controller makes of what it measures, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from bench._virtual import PROMPTS, Run, World, draft_model, generate, measure, target_model
from draftwire.testing.clock import run_virtual
from draftwire.types import Hint, Tokens
from edge_client.branch import Origin
from edge_client.choice import Objective, Watts
from edge_client.controller import AdaptiveController
from edge_client.drafter import Proposal
from edge_client.drafters.table import TableDrafter
from edge_client.plan import FixedController, Plan, Round


def cloud_alone(rtt_ms: float, tokens: int) -> float:
    """Milliseconds a token when the cloud decodes by itself."""
    return measure(World(rtt_ms), FixedController(Plan.cloud_alone()), tokens).ms_per_token


def in_world(world: World, scenario: Callable[[World], object], tokens: int) -> Run:
    """Generate, and have `scenario` change the world when half of the text is there."""

    def then(count: int) -> None:
        if count >= tokens // 2:
            scenario(world)

    async def run() -> Run:
        async with world.serving():
            session = world.session(world.drafter)
            return await generate(session, AdaptiveController(), tokens, then=then)

    return run_virtual(run())


def pace(run: Run, tokens: int) -> float:
    """Milliseconds a token over the last `tokens`."""
    count, ended = 0, run.commits[-1][0]
    for at, batch in reversed(run.commits):
        if count >= tokens:
            return (ended - at) * 1e3 / count
        count += len(batch)
    raise AssertionError("the text is shorter")


@pytest.mark.parametrize("rtt_ms", [1, 20, 60, 150])
def test_drafts_flow_within_the_first_tokens_where_that_pays(rtt_ms: float) -> None:
    controller = AdaptiveController()
    run = measure(World(rtt_ms, rate=0.97), controller, 100)
    assert controller.options[controller.chosen].plan.mode == "flowing"
    assert run.pace_ms(20) < 0.5 * 113


def test_few_drafts_are_sent_in_vain_where_many_fail() -> None:
    for rate, most in ((0.97, 1.5), (0.6, 2.5)):
        run = measure(World(rtt_ms=20, rate=rate), AdaptiveController(), 200)
        assert run.generation.sent_tokens < most * 200


def test_the_round_trip_is_told_apart_from_passes_and_queue() -> None:
    controller = AdaptiveController()
    measure(World(rtt_ms=77), controller, 100)
    measured = controller.measured
    assert measured.rtt_s.value == pytest.approx(0.077, abs=1e-5)
    assert measured.passes.single.value == pytest.approx(0.113)
    assert measured.draft_s.value == pytest.approx(0.024)
    assert measured.times.pass_s(6) == pytest.approx(0.180, rel=0.15)


def test_the_round_trip_is_known_while_drafts_flow_and_the_cloud_runs_on() -> None:
    run = measure(World(rtt_ms=77, rate=0.8), FixedController(Plan.flowing(16, 2, 64)), 100)
    assert len(run.generation.rtts_s) > 20
    assert run.generation.rtts_s == pytest.approx([0.077] * len(run.generation.rtts_s), abs=1e-5)


@pytest.mark.parametrize(
    ("rtt_ms", "rate", "draft_ms"),
    [(1, 0.97, 120), (60, 0.97, 300), (60, 0.2, 24), (150, 0.6, 24), (600, 0.8, 24)],
    ids=["slow drafter", "very slow drafter", "poor drafter", "long link", "very long link"],
)
def test_where_splitting_does_not_pay_the_cloud_decodes_alone(
    rtt_ms: float, rate: float, draft_ms: float
) -> None:
    run = measure(World(rtt_ms, rate, draft_ms), AdaptiveController(), 300)
    assert run.ms_per_token <= 1.03 * cloud_alone(rtt_ms, 300)


def test_drafts_that_never_hold_cost_the_verifier_next_to_nothing() -> None:
    world = World(rtt_ms=20)
    world.drafter.always_wrong = True
    run = measure(world, AdaptiveController(), 400)
    assert run.generation.sent_tokens <= 80
    assert run.ms_per_token <= 1.02 * cloud_alone(20, 400)


def test_while_the_cloud_decodes_alone_the_device_rests_most_of_the_time() -> None:
    world = World(rtt_ms=150, rate=0.2)
    measure(world, AdaptiveController(), 400)
    assert world.drafter.drafted < 0.5 * 400


def test_splitting_comes_back_when_drafts_hold_again() -> None:
    def better(world: World) -> None:
        world.drafter.model = draft_model(0.97)

    run = in_world(World(rtt_ms=60, rate=0.2), better, 600)
    assert pace(run, 100) < 0.6 * 113


def test_splitting_comes_back_when_the_device_is_fast_again() -> None:
    def faster(world: World) -> None:
        world.drafter.draft_time_s = 0.024

    run = in_world(World(rtt_ms=20, draft_ms=250), faster, 500)
    assert pace(run, 100) < 0.6 * 113


def test_splitting_stops_when_drafts_hold_no_more() -> None:
    def worse(world: World) -> None:
        world.drafter.always_wrong = True

    run = in_world(World(rtt_ms=60, rate=0.97), worse, 600)
    assert pace(run, 200) < 1.02 * 113


class SlowReader(TableDrafter):
    """Reads a prompt for five seconds."""

    async def draft(self, keep: int, tokens: Tokens) -> Proposal:
        if keep == 0:
            await asyncio.sleep(5.0)
        return await super().draft(keep, tokens)


def test_no_token_waits_while_the_device_reads_the_prompt() -> None:
    world = World(rtt_ms=20)
    world.drafter = SlowReader(draft_model(0.97), draft_time_s=0.024)
    alone = measure(World(rtt_ms=20), FixedController(Plan.cloud_alone()), 150)
    split = measure(world, AdaptiveController(), 150)
    meanwhile = [at for at, _ in split.commits if at < 5.0]
    assert meanwhile == pytest.approx([at for at, _ in alone.commits if at < 5.0])
    assert pace(split, 60) < 0.6 * 113  # and then it joins in


def test_the_last_token_is_left_to_the_target() -> None:
    for most in (1, 2, 3, 40):
        world = World(rtt_ms=1, rate=0.97)
        controller = AdaptiveController()
        measure(world, controller, 60)  # so that it knows what to do
        world = World(rtt_ms=1, rate=0.97)
        run = measure(world, controller, most)
        last = len(PROMPTS[0]) + most
        assert all(frame.end < last for frame in world.frames if frame.tokens)
        assert run.commits[-1][1][-1].origin is not Origin.ACCEPTED


def test_what_one_generation_taught_serves_the_next() -> None:
    controller = AdaptiveController()
    measure(World(rtt_ms=20), controller, 200)
    run = measure(World(rtt_ms=20), controller, 60)
    assert run.pace_ms(1) < 0.5 * 113


def test_among_other_sessions_splitting_is_learnt_as_well() -> None:
    # No pass has one row only, for there is always another session's in it.
    async def scenario() -> list[Run]:
        world = World(rtt_ms=20)
        async with world.serving():
            alone = world.session(None)
            companion = asyncio.create_task(generate(alone, AdaptiveController(), 500, PROMPTS[1]))
            await asyncio.sleep(0.5)
            runs = await asyncio.gather(
                *(
                    generate(world.session(world.new_drafter()), AdaptiveController(), 150, prompt)
                    for prompt in PROMPTS[2:]
                )
            )
            companion.cancel()
            await asyncio.wait([companion])
            return runs

    for run in run_virtual(scenario()):
        assert run.generation.sent_tokens > 100
        assert pace(run, 100) < 0.6 * 200


def test_a_verifier_that_charges_for_its_time_gets_rounds_that_fill_its_passes() -> None:
    passes = []
    for objective in (Objective.LATENCY, Objective.COST):
        run = measure(World(rtt_ms=20), AdaptiveController(objective), 200)
        assert run.ms_per_token < 113
        finished = run.generation.finished
        assert finished is not None
        passes.append(finished.usage.passes)
    assert passes[1] < 0.8 * passes[0]


def test_energy_is_saved_by_not_drafting_where_drafting_is_dear() -> None:
    drafted = []
    for drafting in (1.0, 50.0):
        world = World(rtt_ms=20, rate=0.8)
        watts = Watts(drafting=drafting, waiting=1.0)
        measure(world, AdaptiveController(Objective.ENERGY, watts=watts), 200)
        drafted.append(world.drafter.drafted)
    assert drafted[1] < 0.5 * drafted[0]


def test_the_verifiers_hint_bounds_what_is_under_way() -> None:
    controller = AdaptiveController()
    measure(World(rtt_ms=20), controller, 60)
    controller.judged(Round(**QUIET, hint=Hint(suggested_k=3, load_percent=90)))
    assert max(option.plan.window for option in controller.options if option.plan.chunk) > 3
    for _ in range(3 * len(controller.options)):
        controller.judged(Round(**QUIET, hint=Hint(suggested_k=3, load_percent=90)))
    assert max(option.plan.window for option in controller.options) == 4


QUIET: dict[str, Any] = {
    "at": 0.0,
    "committed": 1,
    "sent": 0,
    "first": False,
    "outcomes": (),
    "rtt_s": None,
    "queue_s": 0.0,
    "pass_s": 0.113,
    "pass_rows": 1,
    "remaining": 100,
}


@pytest.mark.parametrize("rate", [0.97, 0.6])
def test_the_text_is_the_targets_whatever_the_objective(rate: float) -> None:
    text = target_model().generate(PROMPTS[0], 120)
    for objective in Objective:
        run = measure(World(rtt_ms=60, rate=rate), AdaptiveController(objective), 120)
        assert run.tokens == text


class Mortal(TableDrafter):
    """Fails after some drafts."""

    async def draft(self, keep: int, tokens: Tokens) -> Proposal:
        if self.drafted >= 20:
            raise RuntimeError("out of memory, say")
        return await super().draft(keep, tokens)


@pytest.mark.parametrize(
    ("drafter", "drafts"),
    [
        (lambda: None, 0),
        (lambda: TableDrafter(draft_model(0.97), max_context=20), 20 - len(PROMPTS[0])),
        (lambda: Mortal(draft_model(0.97)), 20),
    ],
    ids=["none", "its context is full", "it fails"],
)
def test_without_a_drafter_the_cloud_streams_whatever_the_plan(
    drafter: Callable[[], TableDrafter | None], drafts: int
) -> None:
    async def scenario() -> Run:
        world = World(rtt_ms=150)
        async with world.serving():
            session = world.session(drafter())
            return await generate(session, FixedController(Plan.waiting(4)), 200)

    run = run_virtual(scenario())
    assert pace(run, 150) == pytest.approx(113)
    assert run.generation.sent_tokens <= drafts
