"""Rounds that wait for their verdict: the maths of how far to draft."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from edge_client.rounds import best_length, expected_tokens, pays, time_per_token


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
