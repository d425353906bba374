"""How far the device drafts: the maths, the estimators, and what comes of both on virtual time."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections.abc import Callable

import pytest

from bench._virtual import PROMPTS, Run, World, cpu_pass_s, draft_model, generate, measure
from bench.controller import RATES, RTTS_MS, Cell, compare
from draftwire.testing.clock import run_virtual
from draftwire.types import Tokens
from edge_client.branch import Origin
from edge_client.controller import (
    AdaptiveController,
    best_length,
    expected_tokens,
    pays,
    time_per_token,
)
from edge_client.drafter import Proposal
from edge_client.drafters.table import TableDrafter
from edge_client.estimates import Acceptance, PassTime, Smoothed
from edge_client.plan import FixedController, Plan

# ------------------------------------------------------------------ the maths


@pytest.mark.parametrize(
    ("rtt", "length", "per_token"), [(10, 3, 24.0), (50, 5, 35.6), (100, 6, 48.5), (200, 8, 72.2)]
)
def test_the_worked_values(rtt: float, length: int, per_token: float) -> None:
    fixed, each = rtt + 30, 10 + 0.3  # ms; α .8, drafts of 10 ms, passes of 30 + 0.3·K
    assert best_length(0.8, fixed, each, 64) == length
    assert time_per_token(length, 0.8, fixed, each) == pytest.approx(per_token, abs=0.05)


@pytest.mark.parametrize("rate", [0.0, 0.5, 0.97])
def test_expected_tokens_at_a_constant_rate_are_a_geometric_sum(rate: float) -> None:
    for length in range(20):
        closed = (1 - rate ** (length + 1)) / (1 - rate)
        assert expected_tokens([rate] * length) == pytest.approx(closed)


def test_expected_tokens_of_drafts_that_differ() -> None:
    assert expected_tokens([]) == 1
    assert expected_tokens([0.5, 0.4, 1.0]) == pytest.approx(1 + 0.5 + 0.5 * 0.4 + 0.5 * 0.4)


def test_the_rule_stops_exactly_at_the_least_time_per_token_whatever_the_chances() -> None:
    rng = random.Random(1)
    for _ in range(2000):
        chances = [rng.random() ** rng.choice([0.05, 0.3, 1]) for _ in range(40)]
        fixed, each = rng.uniform(1, 900), rng.uniform(1, 100)
        costs = [(fixed + each * k) / expected_tokens(chances[:k]) for k in range(41)]
        stop = next(
            k for k in range(41) if k == 40 or not pays(chances[:k], chances[k], fixed, each)
        )
        assert costs[stop] == pytest.approx(min(costs), rel=1e-12)
        # and there is but one valley
        assert costs[: stop + 1] == sorted(costs[: stop + 1], reverse=True)
        assert costs[stop:] == pytest.approx(sorted(costs[stop:]), rel=1e-12)


def test_the_best_length_grows_with_the_logarithm_of_what_a_round_costs() -> None:
    lengths = [best_length(0.8, 100 * 10**i, 10, 999) for i in range(5)]
    steps = [b - a for a, b in itertools.pairwise(lengths)]
    assert lengths == sorted(lengths)
    assert max(steps) <= math.log(10) / -math.log(0.8) + 1


def test_drafts_that_never_hold_are_not_worth_one() -> None:
    assert best_length(0.0, 1000, 1, 64) == 0


def test_the_longest_round_is_bounded() -> None:
    assert best_length(1.0, 1000, 1, 7) == 7


# ------------------------------------------------------------------ estimators


def test_smoothing_is_tcps_once_it_has_begun() -> None:
    rng, smoothed = random.Random(2), Smoothed()
    for _ in range(8):
        smoothed.add(rng.uniform(10, 20))
    for _ in range(50):
        mean, deviation, sample = smoothed.value, smoothed.deviation, rng.uniform(10, 20)
        smoothed.add(sample)
        assert smoothed.deviation == pytest.approx(0.75 * deviation + 0.25 * abs(mean - sample))
        assert smoothed.value == pytest.approx(0.875 * mean + 0.125 * sample)


def test_smoothing_begins_as_tcp_does_and_then_with_plain_means() -> None:
    smoothed = Smoothed()
    smoothed.add(40)
    assert (smoothed.value, smoothed.deviation) == (40, 20)
    smoothed.add(20)
    smoothed.add(30)
    assert smoothed.value == pytest.approx(30)


def test_the_time_of_one_row_stays_apart_from_the_line_through_the_others() -> None:
    passes = PassTime()
    for rows in (2, 5, 9, 1, 17, 3, 1, 12) * 10:
        passes.add(rows, cpu_pass_s(rows))
    assert passes.single.value == pytest.approx(0.113)
    assert passes.each == pytest.approx(0.003, rel=0.25)
    assert passes.fixed + 9 * passes.each == pytest.approx(cpu_pass_s(9), rel=0.01)


def test_a_line_is_found_in_noise() -> None:
    # Seeded; over seeds the estimates' spread is a fifth of what is allowed here.
    rng, passes = random.Random(3), PassTime(forget=0.99)
    for _ in range(500):
        rows = rng.randint(2, 33)
        passes.add(rows, 0.2 + 0.01 * rows + rng.gauss(0, 0.01))
    assert passes.each == pytest.approx(0.01, abs=0.001)
    assert passes.fixed == pytest.approx(0.2, abs=0.02)


def test_passes_of_one_size_say_nothing_of_the_slope() -> None:
    rng, passes = random.Random(4), PassTime()
    for _ in range(100):
        passes.add(9, 0.2 + rng.gauss(0, 0.02))
    assert passes.each < 0.002
    assert passes.fixed + 9 * passes.each == pytest.approx(0.2, abs=0.02)


def test_a_slope_is_never_negative() -> None:
    passes = PassTime()
    for rows in (2, 30) * 10:
        passes.add(rows, 0.3 - 0.005 * rows)
    assert passes.each == 0


def test_the_line_follows_when_the_verifier_slows_down() -> None:
    passes = PassTime()
    for slow in (1, 3):
        for rows in (2, 9, 17, 33) * 10:
            passes.add(rows, slow * cpu_pass_s(rows))
    assert passes.fixed + 9 * passes.each == pytest.approx(3 * cpu_pass_s(9), rel=0.05)


def test_before_any_pass_of_more_rows_one_is_taken_for_as_long_as_that_of_one() -> None:
    passes = PassTime()
    passes.add(1, 0.113)
    assert (passes.fixed, passes.each) == (0.113, 0)


def test_acceptance_begins_at_its_prior_and_goes_to_what_is_seen() -> None:
    acceptance = Acceptance(prior=0.8)
    assert acceptance.rate == acceptance.of(0.5) == pytest.approx(0.8)
    for _ in range(200):
        acceptance.add([(0.9, True), (0.9, True), (0.9, False)], tokens=3)
    assert acceptance.rate == pytest.approx(2 / 3, abs=0.02)


def test_each_confidence_learns_what_it_is_worth() -> None:
    acceptance = Acceptance()
    for _ in range(40):
        acceptance.add([(0.999, True), (0.4, True), (0.4, False)], tokens=3)
    assert acceptance.of(0.999) > 0.95
    assert acceptance.of(0.45) == pytest.approx(0.5, abs=0.05)
    assert acceptance.of(0.6) == pytest.approx(acceptance.rate)  # none seen: as all are


def test_a_run_of_luck_promises_no_certainty() -> None:
    acceptance = Acceptance()
    acceptance.add([(0.999, True)] * 1000, tokens=0)
    assert acceptance.rate < 1
    assert acceptance.of(0.999) < 1


def test_evidence_ages_with_the_text_drafted_or_not() -> None:
    early, late = Acceptance(), Acceptance()
    for acceptance in (early, late):
        acceptance.add([(0.9, False)] * 20, tokens=20)
    late.add([], tokens=100)
    for acceptance in (early, late):
        acceptance.add([(0.9, True)] * 8, tokens=8)
    assert late.rate > early.rate + 0.2


# ------------------------------------------------------------------ the controller, on virtual time


def split_lengths(world: World) -> list[int]:
    """Lengths of the drafts that reached the verifier, in order."""
    return [len(frame.tokens) for frame in world.frames if frame.tokens]


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
def test_drafts_get_long_within_the_first_rounds_where_that_pays(rtt_ms: float) -> None:
    world = World(rtt_ms, rate=0.97)
    measure(world, AdaptiveController(), 150)
    assert max(split_lengths(world)[:4]) >= 12


def test_drafts_stay_short_where_half_of_them_fail() -> None:
    world = World(rtt_ms=1, rate=0.6)
    measure(world, AdaptiveController(), 300)
    assert split_lengths(world)
    assert max(split_lengths(world)) <= 8


def test_drafts_get_longer_on_a_longer_link() -> None:
    means = []
    for rtt_ms in (1, 600):
        run = measure(World(rtt_ms, rate=0.97), AdaptiveController(), 300)
        means.append(run.generation.sent_tokens / run.generation.sent_frames)
    assert means[1] > 1.5 * means[0]


def test_the_round_trip_is_told_apart_from_passes_and_queue() -> None:
    controller = AdaptiveController()
    measure(World(rtt_ms=77), controller, 100)
    assert controller.rtt_s.value == pytest.approx(0.077)
    assert controller.passes.single.value == pytest.approx(0.113)
    assert controller.draft_s.value == pytest.approx(0.024)
    assert controller.fixed_s == pytest.approx(0.077 + 0.180, abs=0.015)


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
    assert run.generation.sent_tokens <= 16
    assert run.ms_per_token <= 1.02 * cloud_alone(20, 400)


def test_while_the_cloud_decodes_alone_the_device_rests_most_of_the_time() -> None:
    world = World(rtt_ms=150, rate=0.2)
    measure(world, AdaptiveController(), 400)
    assert world.drafter.drafted < 0.4 * 400


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
    world = World(rtt_ms=20)
    measure(world, controller, 60)
    assert split_lengths(world)[0] >= 12


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


def test_a_busy_verifier_makes_drafts_longer() -> None:
    slow, busy = World(rtt_ms=20, rate=0.8), World(rtt_ms=20, rate=0.8)
    busy.target.pass_s = lambda rows: 5 * cpu_pass_s(rows)
    means = []
    for world in (slow, busy):
        run = measure(world, AdaptiveController(), 200)
        means.append(run.generation.sent_tokens / run.generation.sent_frames)
    assert means[1] > 1.3 * means[0]


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


@pytest.mark.slow
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("rtt_ms", RTTS_MS)
def test_the_controller_comes_close_to_the_best_fixed_choice(rtt_ms: float, rate: float) -> None:
    cell: Cell = compare(rtt_ms, rate, 300)
    assert cell.ratio <= 1.1, cell
