"""Rates come from exact counts."""

from __future__ import annotations

import pytest

from draftwire.errors import InternalError
from draftwire.stats import LatencySummary, summarise_latencies, summarise_rounds


def test_rounds_are_counted_exactly() -> None:
    # drafted, accepted, committed: all hold and a bonus; the second fails; the first fails;
    # the cloud alone; all hold without credit for a bonus
    stats = summarise_rounds([(3, 3, 4), (3, 1, 2), (2, 0, 1), (0, 0, 1), (2, 2, 2)])
    assert stats.rounds == 5
    assert stats.drafted == 10
    assert stats.accepted == 6
    assert stats.committed == 10
    assert stats.accepted_histogram == (2, 1, 1, 1)
    assert stats.judged == (4, 3, 1)
    assert stats.held == (3, 2, 1)
    assert stats.acceptance_rate == 6 / 8
    assert stats.acceptance_by_position == (3 / 4, 2 / 3, 1.0)
    assert stats.block_efficiency == 2.0
    assert stats.utilisation == 0.6


def test_drafts_after_a_rejection_do_not_lower_acceptance() -> None:
    assert summarise_rounds([(8, 1, 2)] * 10).acceptance_rate == 0.5


def test_nothing_gives_zeros() -> None:
    stats = summarise_rounds([])
    assert stats.accepted_histogram == ()
    assert stats.acceptance_rate == stats.block_efficiency == stats.utilisation == 0
    assert stats.acceptance_by_position == ()
    assert summarise_latencies([]) == LatencySummary()


def test_a_position_that_never_held_is_reported() -> None:
    assert summarise_rounds([(2, 0, 1)]).acceptance_by_position == (0.0,)


@pytest.mark.parametrize("impossible", [(2, 3, 4), (2, 2, 1), (2, -1, 1)])
def test_impossible_rounds_are_refused(impossible: tuple[int, int, int]) -> None:
    with pytest.raises(InternalError):
        summarise_rounds([impossible])


def test_latencies_are_order_statistics() -> None:
    summary = summarise_latencies(float(v) for v in reversed(range(101)))
    assert summary == LatencySummary(count=101, median=50.0, p5=5.0, p95=95.0)
    assert summarise_latencies([7.0]) == LatencySummary(count=1, median=7.0, p5=7.0, p95=7.0)
    assert summarise_latencies([1.0, 2.0]).median == 1.5
