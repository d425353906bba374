"""How fast a plan is said to be: known values, limits, and what the real code then takes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest

from bench._virtual import CPU, GPU, PROMPTS, Speeds, World, draft_model, measure, target_model
from draftwire.testing.wire import PROFILES
from edge_client.pace import LONGEST, MOST_ROWS, Runs, Times, pace
from edge_client.plan import FixedController, Plan
from edge_client.rounds import time_per_token


def runs(rate: float) -> Runs:
    """Runs at a constant acceptance rate."""
    chances = [rate**n for n in range(LONGEST + MOST_ROWS)]
    return Runs(chances, [0.0, *itertools.accumulate(chances)])


def times(rtt_ms: float, draft_ms: float = 10, fixed_ms: float = 30, each_ms: float = 0.3) -> Times:
    return Times(
        rtt=rtt_ms / 1e3,
        draft=draft_ms / 1e3,
        single=fixed_ms / 1e3,
        fixed=fixed_ms / 1e3,
        each=each_ms / 1e3,
    )


@pytest.mark.parametrize("length", [1, 3, 8, 16])
@pytest.mark.parametrize("rate", [0.6, 0.8, 0.97])
@pytest.mark.parametrize("rtt_ms", [1, 60, 600])
def test_rounds_that_wait_take_what_the_formula_says(
    rtt_ms: float, rate: float, length: int
) -> None:
    found = pace(Plan.waiting(length), times(rtt_ms), runs(rate))
    expected = time_per_token(length, rate, rtt_ms + 30 + 0.3, 10 + 0.3)
    assert found.seconds * 1e3 == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(
    ("rtt_ms", "per_token"), [(10, 19.4), (50, 26.9), (100, 37.6), (200, 55.2)]
)
def test_drafts_that_flow_take_what_simulation_of_both_sides_says(
    rtt_ms: float, per_token: float
) -> None:
    found = min(
        pace(Plan.flowing(window, chunk), times(rtt_ms), runs(0.8)).seconds * 1e3
        for window in (8, 16, 32)
        for chunk in (1, 2, 4)
    )
    assert found == pytest.approx(per_token, rel=0.06)


def test_the_cloud_alone_takes_its_pass_whatever_the_link() -> None:
    for rtt_ms in (1, 600):
        found = pace(Plan.cloud_alone(), times(rtt_ms), runs(0.8))
        assert (found.seconds, found.pass_s, found.rows, found.drafts) == (0.03, 0.03, 1, 0)


@pytest.mark.parametrize("rate", [0.3, 0.6, 0.8, 0.97])
def test_running_on_is_never_slower_than_the_cloud_alone_where_rows_are_free(rate: float) -> None:
    for rtt_ms, draft_ms in itertools.product((1, 60, 600), (10, 100)):
        found = pace(Plan.flowing(16, 2, 256), times(rtt_ms, draft_ms, each_ms=0), runs(rate))
        assert found.seconds <= 0.030 * 1.0001


def test_what_is_certain_flows_at_the_devices_own_speed() -> None:
    found = pace(Plan.flowing(64, 2), times(20), runs(1.0))
    assert found.seconds == pytest.approx(0.010, rel=0.05)
    assert found.drafts == pytest.approx(1.0, rel=0.05)


def test_drafts_that_never_hold_leave_the_clouds_own_pace() -> None:
    assert pace(Plan.flowing(8, 2, 64), times(60), runs(0.0)).seconds == pytest.approx(0.030)


def test_rounds_spare_the_verifier_what_running_on_spends() -> None:
    waits, ahead = (
        pace(plan, times(150), runs(0.8)) for plan in (Plan.waiting(8), Plan.flowing(32, 2, 128))
    )
    assert ahead.seconds < waits.seconds
    assert ahead.pass_s > 1.5 * waits.pass_s


def test_the_window_pays_for_a_longer_link() -> None:
    best = [
        min((4, 8, 16, 32, 64), key=lambda w: pace(Plan.flowing(w, 2), at, runs(0.97)).seconds)
        for at in (times(1), times(60), times(600))
    ]
    assert best == sorted(best)
    assert best[0] <= 16 < best[-1]


PLANS = (Plan.waiting(4), Plan.flowing(24, 2), Plan.flowing(24, 2, 128), Plan.flowing(6, 2, 128))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped(Times):
    """Times whose passes go in steps, as those of the world do."""

    speeds: Speeds

    def pass_s(self, rows: int) -> float:
        return self.speeds.pass_s(rows)


@pytest.mark.parametrize(
    ("profile", "rate", "speeds"),
    [("5g", 0.8, CPU), ("satellite", 0.97, CPU), ("lte", 0.97, GPU)],
    ids=["cpu", "far", "gpu"],
)
def test_the_real_code_takes_that_long(profile: str, rate: float, speeds: Speeds) -> None:
    text = [*PROMPTS[0], *target_model().generate(PROMPTS[0], 250)]
    held = [
        target_model().best(state) == draft_model(rate).best(state)
        for state in map(target_model().state_of, (text[:end] for end in range(8, len(text))))
    ]
    at = Stepped(
        rtt=PROFILES[profile].rtt_ms / 1e3,
        draft=speeds.draft_ms / 1e3,
        single=speeds.single_ms / 1e3,
        fixed=0.0,
        each=0.0,
        speeds=speeds,
    )
    for plan in PLANS:
        world = World(link=PROFILES[profile], rate=rate, speeds=speeds)
        run = measure(world, FixedController(plan), 250)
        found = pace(plan, at, runs(sum(held) / len(held)))
        assert found.seconds * 1e3 == pytest.approx(run.pace_ms(1), rel=0.12), plan
