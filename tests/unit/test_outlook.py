"""What the doctor foretells, against what the real controller then takes, on virtual time."""

from __future__ import annotations

import pytest

from bench._virtual import CPU, FAST_CPU, GPU, PROMPTS, Speeds, World, generate
from draftwire.testing.clock import run_virtual
from edge_client.controller import AdaptiveController
from edge_client.estimates import Acceptance
from edge_client.outlook import Expected, Outlook
from edge_client.pace import Times
from edge_client.plan import FixedController, Plan
from edge_client.survey import survey

TOKENS = 200
TIMES = Times(rtt=0.02, draft=0.02, single=0.1, fixed=0.15, each=0.002)


def held(share: float) -> Acceptance:
    acceptance = Acceptance()
    for at in range(400):
        acceptance.add([(0.9, at % 100 < 100 * share)], 1)
    return acceptance


def foretold_and_taken(speeds: Speeds, rtt_ms: float, rate: float) -> tuple[float, float]:
    """Speed-ups over a text of `TOKENS`: what the survey lets expect, and what came."""

    async def scenario() -> tuple[float, float]:
        world = World(speeds=speeds, rtt_ms=rtt_ms, rate=rate)
        async with world.serving():
            found = await survey(world.session, world.new_drafter(), PROMPTS[:2])
            measured = found.measured
            outlook = Outlook(
                times=measured.times, acceptance=measured.acceptance, alone_s=found.alone_s
            )
            expected = outlook.at().over(TOKENS, found.start_s, 0.0)
            controller = AdaptiveController()
            session = world.session(world.new_drafter())
            await generate(session, controller, 16, PROMPTS[3])  # as the demo warms up
            split = [
                await generate(world.session(world.new_drafter()), controller, TOKENS, prompt)
                for prompt in PROMPTS
            ]
            alone = await generate(
                world.session(None), FixedController(Plan.cloud_alone()), TOKENS, PROMPTS[0]
            )
            taken_ms = sum(run.ms_per_token for run in split) / len(split)
            return expected, alone.ms_per_token / taken_ms

    return run_virtual(scenario())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("speeds", "rtt_ms", "rate"),
    [(CPU, 60.0, 0.97), (CPU, 1.0, 0.8), (FAST_CPU, 20.0, 0.9), (GPU, 150.0, 0.97)],
    ids=["cpu", "cpu, poor drafts", "fast cpu", "gpu, far"],
)
def test_the_speedup_foretold_is_the_one_that_comes(
    speeds: Speeds, rtt_ms: float, rate: float
) -> None:
    expected, taken = foretold_and_taken(speeds, rtt_ms, rate)
    assert expected == pytest.approx(taken, rel=0.2)


def test_a_drafter_as_slow_as_the_target_is_left_alone() -> None:
    slow = Times(rtt=0.02, draft=0.2, single=0.1, fixed=0.15, each=0.002)
    outlook = Outlook(times=slow, acceptance=held(0.5))
    assert outlook.at().mode == "cloud-alone"
    assert outlook.at().speedup == 1.0
    assert outlook.break_even_s() == 0.0


def test_the_cloud_alone_is_taken_at_its_own_speed_beside_an_idle_device() -> None:
    """Where both sides share a machine, drafting slows passes down: splitting pays less then."""
    beside = Outlook(times=TIMES, acceptance=held(0.95)).at()
    alone = Outlook(times=TIMES, acceptance=held(0.95), alone_s=0.08).at()
    assert alone.seconds == beside.seconds
    assert alone.speedup == pytest.approx(beside.speedup * 0.08 / TIMES.single, rel=0.02)
    assert Outlook(times=TIMES, acceptance=held(0.95), alone_s=0.01).at().speedup == 1.0


def test_the_break_even_is_where_splitting_stops_to_pay() -> None:
    outlook = Outlook(times=TIMES, acceptance=held(0.7))
    even = outlook.break_even_s()
    assert even is not None
    assert 0.01 < even < 2
    assert outlook.at(even * 0.9).mode != "cloud-alone"
    assert outlook.at(even * 1.2).mode == "cloud-alone"


def test_a_drafter_that_is_always_right_pays_at_any_distance() -> None:
    assert Outlook(times=TIMES, acceptance=held(1.0)).break_even_s() is None


def test_a_text_starts_and_reads_its_prompt_before_it_flows() -> None:
    expected = Expected(
        rtt_s=0.02,
        mode="flowing",
        window=8,
        seconds=0.025,
        alone_s=0.1,
        joules=0.1,
        alone_joules=0.1,
    )
    assert expected.speedup == pytest.approx(4)
    assert expected.over(100, 0.0, 0.0) == pytest.approx(4)
    assert expected.over(100, 1.0, 1.0) == pytest.approx(11 / (1 + 1 + 90 * 0.025))
    assert expected.over(10, 0.0, 9.0) == 1.0
