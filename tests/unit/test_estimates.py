"""What the controller measures: times, passes, acceptance."""

from __future__ import annotations

import random

import pytest

from edge_client.estimates import Acceptance, Measured, PassTime, Smoothed


def pass_s(rows: int) -> float:
    """Seconds of a pass: a step from one row to two, and a straight line."""
    return 0.113 if rows == 1 else 0.180 + 0.003 * rows


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
        passes.add(rows, pass_s(rows))
    assert passes.single.value == pytest.approx(0.113)
    assert passes.each == pytest.approx(0.003, rel=0.25)
    assert passes.fixed + 9 * passes.each == pytest.approx(pass_s(9), rel=0.01)


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
        for rows in (2, 9, 17, 33) * 20:
            passes.add(rows, slow * pass_s(rows))
    assert passes.fixed + 9 * passes.each == pytest.approx(3 * pass_s(9), rel=0.05)


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


def test_an_accident_does_not_move_a_smoothed_value() -> None:
    smoothed = Smoothed()
    for sample in [60, 62, 58, 61, 3060, 59, 2000, 60]:
        smoothed.add(sample)
    assert smoothed.value == pytest.approx(60, abs=1)


def test_a_value_that_stays_elsewhere_is_believed_at_the_third_time() -> None:
    smoothed = Smoothed()
    for _ in range(100):
        smoothed.add(600)
    for sample in (25, 24, 26):
        assert smoothed.value == 600
        smoothed.add(sample)
    assert smoothed.value == pytest.approx(25)


def test_runs_of_drafts_hold_as_long_as_their_places_do() -> None:
    acceptance = Acceptance()
    for _ in range(60):  # the first after a correction fails half of the time, the others never
        acceptance.add([(0.9, False), *[(0.9, True)] * 4, (0.9, False)], tokens=2)
    runs = acceptance.runs()
    assert runs.chances[0] == 1
    assert runs.chances[1] < 0.65
    assert runs.chances[2] / runs.chances[1] > 0.85
    assert runs.tokens[3] == pytest.approx(sum(runs.chances[:3]))


@pytest.mark.parametrize("each", [2, 4])
def test_drafts_that_are_slow_now_and_again_are_no_accidents(each: int) -> None:
    measured = Measured()
    for index in range(80):
        measured.drafted(0.024 if index % each or index < 20 else 0.124, 1)
    assert measured.draft_s.value == pytest.approx(0.024 + 0.1 / each, rel=0.35)
