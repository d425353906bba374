"""The controller against fixed plans: `bench.controller` in small, and all of it where time is."""

from __future__ import annotations

import pytest

from bench._switches import outage
from bench._virtual import CPU, PROMPTS, target_model
from bench.controller import FIXED, RATES, SPEEDS, compare, summarise
from draftwire.testing.wire import PROFILES

FEW = ("cloud-alone", "waiting 4", "run-on 8/2", "run-on 24/2")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("speeds", "profile", "rate"),
    [("cpu", "lte", 0.8), ("gpu", "far", 0.97), ("cpu", "satellite", 0.6)],
)
def test_the_controller_keeps_up_with_the_best_fixed_plan(
    speeds: str, profile: str, rate: float
) -> None:
    cell = compare(speeds, profile, rate, tokens=150, plans=FEW)
    assert cell.ratio <= 1.05, cell
    assert cell.to_cloud <= 1.02, cell
    assert cell.off <= 0.3, cell


def test_a_stall_ends_neither_stream_nor_text() -> None:
    run = outage(0.8, CPU)
    assert run.generation.opens == 1
    assert run.tokens == target_model().generate(PROMPTS[0], len(run.tokens))


@pytest.mark.slow
def test_the_whole_grid_holds_what_is_claimed() -> None:
    done = [
        compare(speeds, profile, rate, tokens=200)
        for speeds in SPEEDS
        for profile in PROFILES
        for rate in RATES
    ]
    assert {name: value for name, (value, limit) in summarise(done).items() if value > limit} == {}


@pytest.mark.slow
def test_texts_are_equal_at_a_temperature_too() -> None:
    cell = compare("cpu", "5g", 0.8, 0.8, tokens=100, plans=("waiting 4", "cloud-alone"))
    assert set(cell.fixed) <= set(FIXED)
