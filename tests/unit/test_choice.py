"""Which plan is taken, given what each would cost."""

from __future__ import annotations

import pytest

from draftwire.errors import InvalidRequest
from edge_client.choice import (
    Objective,
    Option,
    Terms,
    Watts,
    as_objective,
    candidates,
    choose,
    rounded,
    run_on,
)
from edge_client.pace import Pace, Times
from edge_client.plan import Plan

TIMES = Times(rtt=0.06, draft=0.024, single=0.113, fixed=0.18, each=0.003)


def options(*seconds: float, pass_s: tuple[float, ...] = ()) -> list[Option]:
    """The cloud alone first; then plans that take so long a token."""
    passes = pass_s or seconds
    plans = [Plan.cloud_alone(), *(Plan.waiting(k + 1) for k in range(len(seconds) - 1))]
    return [
        Option(plan, Pace(each, busy, 1.0, 1.0))
        for plan, each, busy in zip(plans, seconds, passes, strict=True)
    ]


def chosen(now: int, *seconds: float, to_come: float = 1000.0) -> int:
    terms = Terms(Objective.LATENCY, Watts(), TIMES)
    return choose(options(*seconds), now, terms, to_come)


def test_splitting_begins_where_it_gains_a_twentieth_and_ends_where_it_gains_nothing() -> None:
    assert chosen(0, 1.0, 0.97) == 0
    assert chosen(0, 1.0, 0.94) == 1
    assert chosen(1, 1.0, 0.97) == 1
    assert chosen(1, 1.0, 0.99) == 0


def test_another_plan_is_taken_only_for_a_gain() -> None:
    assert chosen(1, 1.0, 0.500, 0.495) == 1
    assert chosen(1, 1.0, 0.500, 0.480) == 2


def test_splitting_does_not_begin_for_the_last_tokens() -> None:
    assert chosen(0, 0.113, 0.1, to_come=4) == 0
    assert chosen(0, 0.113, 0.1, to_come=5) == 1
    assert chosen(1, 0.113, 0.1, to_come=1) == 1


@pytest.mark.parametrize("objective", [Objective.COST, Objective.ENERGY])
def test_nothing_is_saved_at_the_price_of_being_slower_than_the_cloud_alone(
    objective: Objective,
) -> None:
    terms = Terms(objective, Watts(drafting=0.0), TIMES)
    slow = options(0.1, 0.11, 0.09, pass_s=(0.1, 0.01, 0.05))
    assert choose(slow, 0, terms, 1000) == 2


def test_cost_takes_what_the_verifier_spends_least_on() -> None:
    terms = Terms(Objective.COST, Watts(), TIMES)
    both = options(0.1, 0.05, 0.08, pass_s=(0.1, 0.05, 0.03))
    assert choose(both, 1, terms, 1000) == 2


def test_energy_weighs_drafts_against_the_time_that_all_takes() -> None:
    terms = Terms(Objective.ENERGY, Watts(drafting=4.0, waiting=1.0), TIMES)
    assert terms.price(Pace(0.05, 0.05, 1.0, 1.5)) == pytest.approx(0.05 + 4 * 1.5 * 0.024)


def test_only_latency_has_the_cloud_run_on() -> None:
    for objective in Objective:
        plans = candidates(Terms(objective, Watts(), TIMES), 0.8, 64)
        ahead = {plan.credit for plan in plans if plan.pipelined}
        assert (ahead == {1}) == (objective is not Objective.LATENCY)


def test_none_has_more_drafts_for_a_pass_than_allowed() -> None:
    plans = candidates(Terms(Objective.LATENCY, Watts(), TIMES), 0.97, 5)
    assert plans[1].window == 5
    assert max(plan.window for plan in plans) == 7  # the round trip lasts a third of a pass


def test_running_on_never_waits_for_credit() -> None:
    assert run_on(TIMES) == 32
    assert run_on(Times(rtt=0.6, draft=0.01, single=0.03, fixed=0.03, each=0.0)) >= 2 * 20 + 16


def test_times_are_rounded_to_a_few_percent() -> None:
    near = rounded(TIMES)
    assert near.rtt == pytest.approx(TIMES.rtt, rel=0.021)
    assert near.draft == pytest.approx(TIMES.draft, rel=0.011)
    assert near.each == pytest.approx(TIMES.each, abs=0.006 * TIMES.fixed)
    assert rounded(Times(rtt=0.0, draft=0.0, single=0.0, fixed=0.0, each=0.0)).rtt > 0


def test_what_is_no_objective_is_refused() -> None:
    assert as_objective("cost") is Objective.COST
    with pytest.raises(InvalidRequest, match="speed"):
        as_objective("speed")
    with pytest.raises(InvalidRequest):
        Watts(drafting=-1.0)
    with pytest.raises(InvalidRequest):
        Watts(waiting=float("nan"))
