"""A device whose drafting slows down or stops in mid-text, on virtual time."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from bench._slowdowns import HANG_S, THIRD, hang, longest_pause_s, slowdown, tokens_to_return
from bench._virtual import World, measure
from bench.controller import FIXED
from edge_client.branch import Origin
from edge_client.choice import Objective, Watts
from edge_client.controller import AdaptiveController
from edge_client.plan import Controller, FixedController, Plan, View, without_the_next
from edge_client.trace import TracedController

FEW = {name: FIXED[name] for name in ("cloud-alone", "run-on 24/2")}


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.97, 0.8])
def test_each_third_of_a_text_is_as_fast_as_its_best_plan(rate: float) -> None:
    fast, slow, again = slowdown(rate, FEW)
    assert fast.ratio <= 1.05
    assert slow.best == "cloud-alone"
    assert slow.ratio <= 1.05
    assert again.to_cloud < 0.8
    assert tokens_to_return(rate) <= 80


@pytest.mark.parametrize("objective", [Objective.COST, Objective.ENERGY])
def test_no_objective_keeps_to_a_drafter_that_has_become_slow(objective: Objective) -> None:
    _, slow, _ = slowdown(0.97, {"cloud-alone": FIXED["cloud-alone"]}, objective)
    assert slow.to_cloud <= 1.05


CONTROLLERS: dict[str, tuple[Callable[[], Controller], float]] = {
    "latency": (AdaptiveController, 0.1),
    "cost": (lambda: AdaptiveController(Objective.COST), 0.4),  # long rounds
    "energy": (lambda: AdaptiveController(Objective.ENERGY, watts=Watts(drafting=0.3)), 0.2),
    "rounds of four": (lambda: FixedController(Plan.waiting(4)), 1.2),
    "drafts that flow": (lambda: FixedController(Plan.flowing(8, 2)), 1.2),
}


@pytest.mark.parametrize(("controller", "pause_s"), CONTROLLERS.values(), ids=CONTROLLERS)
def test_a_draft_that_does_not_come_holds_up_nothing(
    controller: Callable[[], Controller], pause_s: float
) -> None:
    run = hang(controller())
    assert run.commits[-1][0] > HANG_S
    assert longest_pause_s(run) <= pause_s
    ends = [commit.origin for _, batch in run.commits for commit in batch][-THIRD:]
    assert ends.count(Origin.ACCEPTED) > 0.5 * THIRD  # once it comes, drafts are of use again


def test_what_is_drafted_is_sent_while_the_next_draft_is_late() -> None:
    view = View(confidences=(0.9, 0.9), sent=0, remaining=100, behind=0, late=True)
    for controller in (FixedController(Plan.waiting(4)), FixedController(Plan.flowing(8, 4))):
        plan = controller.plan(view)
        assert (plan.window, plan.chunk) == (2, 2)
        assert plan.credit > 1


def test_what_is_sent_is_not_sent_again_and_the_cloud_is_asked_for_more() -> None:
    view = View(confidences=(0.9, 0.9), sent=2, remaining=100, behind=0, late=True)
    assert without_the_next(view, 40) == Plan.shadow(2, 40)


def test_a_cloud_that_is_alone_does_not_care_how_late_a_draft_is() -> None:
    view = View(confidences=(), sent=0, remaining=100, behind=0, late=True)
    assert FixedController(Plan.cloud_alone()).plan(view) == Plan.cloud_alone()


def test_a_trace_shows_the_late_draft_and_what_was_done() -> None:
    lines: list[str] = []
    hang(TracedController(AdaptiveController(Objective.COST), lines.append))
    rounds = [json.loads(line) for line in lines]
    late = [one for one in rounds if one["drafts"]["late"]]
    assert {one["under"]["mode"] for one in late[1:-1]} == {"cloud-alone"}
    assert late[-1]["at_s"] - late[0]["at_s"] == pytest.approx(HANG_S, abs=0.5)
    longest = max(one["drafts"]["longest_ms"] or 0 for one in rounds)
    assert longest == pytest.approx(1e3 * HANG_S, rel=0.01)
    usual: Any = rounds[-1]["estimates"]
    assert usual["draft_ms"] == pytest.approx(7.0, rel=0.1)  # one is an accident


def test_the_objective_may_change_in_mid_text() -> None:
    controller = AdaptiveController(watts=Watts(drafting=50.0))
    world = World(rtt_ms=20)
    drafted: dict[int, int] = {}

    def then(count: int) -> None:
        drafted[count] = world.drafter.drafted
        if count >= 100:
            controller.objective = Objective.LATENCY if count >= 300 else Objective.ENERGY

    run = measure(world, controller, 450, then=then)
    before, saving, after = (
        max(of for count, of in drafted.items() if low <= count < high)
        - min(of for count, of in drafted.items() if low <= count < high)
        for low, high in ((20, 100), (110, 300), (310, 450))
    )
    assert before > 60
    assert saving < 0.4 * 190
    assert after > 120
    assert run.pace_ms(350) < 0.6 * 113
