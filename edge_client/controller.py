"""The controller: from what was measured to a plan, and why.

What it measures is in `estimates`, how fast a plan would be in `pace`, which one is best in
`choice`. Here they meet: every verdict teaches something, the present plan and one other are
looked at again, and the better one is taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from edge_client.choice import (
    LONGEST_ROUND,
    Objective,
    Option,
    Terms,
    Watts,
    candidates,
    choose,
    rounded,
)
from edge_client.estimates import Measured
from edge_client.pace import Pace, pace
from edge_client.plan import FixedController, Plan, Round, View, without_the_next
from edge_client.rounds import pays

PROBE_TOKENS, PROBE_EVERY = 16, 64
"""While the cloud decodes alone, the device drafts along for the first 16 of 64 tokens."""

CHANGED = 1.5
"""How many times as long or as short drafts must take for all plans to be looked at again."""

SINGLES = 2
"""Passes of one row to time before anything is sent; the first after a start is often slow."""


class AdaptiveController:
    """Takes the plan that serves the objective best; leaves it to the cloud when none does.

    `longest` bounds the drafts of a pass, as does the verifier's hint. What it learns outlives a
    generation, so that one controller serves all that share a verifier and drafters.

    The cloud streams while the drafter still reads (a prompt, or what the cloud wrote meanwhile),
    and at first until its pass of one row was timed: else nobody could say what splitting gains.
    The device drafts along then, and now and then while it is left to the cloud, without sending:
    what those drafts would have been worth costs neither verifier nor network anything to know,
    and keeps the way back open.
    """

    def __init__(
        self,
        objective: Objective = Objective.LATENCY,
        *,
        watts: Watts | None = None,
        longest: int = 64,
    ) -> None:
        self._objective = objective
        self._anew = True  # all options are to be looked at
        self.measured = Measured()
        self.options: list[Option] = []
        self.chosen = 0
        self._watts = watts or Watts()
        self._most = self._longest = longest
        self._alone_tokens = self._look = self._remaining = 0
        self._draft_s = 0.0  # when all options were looked at
        self._flowing = False  # whether drafts sent in this stream were judged
        self._cloud = Plan.cloud_alone()

    @property
    def objective(self) -> Objective:
        """What tokens should take little of; it may be changed in the middle of a text."""
        return self._objective

    @objective.setter
    def objective(self, objective: Objective) -> None:
        self._objective = objective
        self._anew = True

    @property
    def speculating(self) -> bool:
        """Whether drafts are sent."""
        return self.chosen > 0 or not self.options

    @property
    def expected(self) -> Pace | None:
        """What a token is thought to take now; None while nothing is known.

        That is the cloud's pace also where drafts are to be sent, until the first are judged.
        """
        return self.options[self.chosen if self._flowing else 0].pace if self.options else None

    @property
    def patience_s(self) -> float:
        """As long as two drafts take, give or take, and a token of the cloud's alone.

        So a device that stops drafting costs a text little more than that token.
        """
        if not self.options:
            return FixedController.patience_s
        draft_s = self.measured.draft_s
        return 2 * draft_s.value + 4 * draft_s.deviation + self.measured.passes.single.value

    def plan(self, view: View) -> Plan:
        """Draft one more token, send what there is, or leave it to the cloud."""
        length, last = len(view.confidences), view.remaining <= 1  # the target writes the last one
        if not self.options or not self.chosen or (view.behind > 1 and not view.sent):
            along = self.speculating or self._alone_tokens % PROBE_EVERY < PROBE_TOKENS
            return Plan.shadow(1, self._cloud.credit) if along and not last else self._cloud
        if view.late:
            return without_the_next(view, self._cloud.credit)
        plan = self.options[self.chosen].plan
        if plan.pipelined:
            more = not last and self._worth(view.confidences)
            return plan if more else _as_it_is(plan, length)
        if view.sent:
            return Plan.waiting(length)
        if last:
            return Plan.waiting(length) if length else self._cloud
        return Plan.waiting(max(1, length + self._pays(view.confidences)))

    def drafted(self, seconds: float, fed: int) -> None:
        """Time a draft. Where that has changed by much the verdict is not waited for."""
        self.measured.drafted(seconds, fed)
        if self.options and self._changed:
            self._choose(self._remaining)

    def judged(self, outcome: Round) -> None:
        """Learn from a verdict and decide how to go on."""
        self.measured.learn(outcome)
        if outcome.first or not self.chosen:
            self._flowing = False
        self._flowing |= bool(outcome.sent and outcome.outcomes)
        if outcome.hint is not None:
            self._longest = min(self._most, outcome.hint.suggested_k or self._most)
        self._alone_tokens += outcome.committed
        self._remaining = outcome.remaining
        measured = self.measured
        if measured.passes.single.count >= SINGLES and measured.draft_s.count:
            self._choose(outcome.remaining)

    def explain(self) -> Mapping[str, Any]:
        """Estimates, options and choice."""
        measured, expected = self.measured, self.expected
        return {
            "objective": self.objective.value,
            "estimates": {
                "rtt_ms": _ms(measured.rtt_s.value),
                "rtt_deviation_ms": _ms(measured.rtt_s.deviation),
                "queue_ms": _ms(measured.queue_s.value),
                "draft_ms": _ms(measured.draft_s.value),
                "single_ms": _ms(measured.passes.single.value),
                "pass_fixed_ms": _ms(measured.passes.fixed),
                "pass_each_ms": _ms(measured.passes.each),
                "acceptance": round(measured.acceptance.rate, 4),
            },
            "options": [
                {
                    "mode": option.plan.mode,
                    "window": option.plan.window,
                    "ms": _ms(option.pace.seconds),
                    "pass_ms": _ms(option.pace.pass_s),
                }
                for option in self.options
            ],
            "chosen": self.chosen,
            "expected_ms": None if expected is None else _ms(expected.seconds),
        }

    def _choose(self, remaining: int) -> None:
        """Look at the present plan and one other again, and take the better."""
        acceptance, terms = self.measured.acceptance, self._terms
        runs = acceptance.runs()
        plans = candidates(terms, acceptance.rate, self._longest)
        looks: Iterable[int] = (0, self._next_look(len(plans)))
        if self._anew or self._changed:
            looks, self._draft_s = range(len(plans)), self.measured.draft_s.value
            self._anew = False
        for index in looks:
            option = Option(plans[index], pace(plans[index], terms.times, runs))
            self.options[index : index + 1] = [option]
        to_come = min(remaining, self.measured.to_come)
        chosen = choose(self.options, self.chosen, terms, to_come)
        if chosen == 0 and self.chosen:
            self._alone_tokens = 0
        self.chosen = chosen
        self._cloud = plans[0]

    @property
    def _changed(self) -> bool:
        """Whether drafts take much longer or shorter than when all options were looked at."""
        before, now = self._draft_s, self.measured.draft_s.value
        return max(before, now) > CHANGED * min(before, now)

    def _next_look(self, count: int) -> int:
        """The option to look at next: the present one every other time, else each in turn."""
        self._look += 1
        return self.chosen if self._look % 2 else self._look // 2 % count

    @property
    def _terms(self) -> Terms:
        return Terms(self.objective, self._watts, rounded(self.measured.times))

    def _pays(self, confidences: Sequence[float]) -> bool:
        """Whether a round is to have another draft after these."""
        acceptance = self.measured.acceptance
        chances = [acceptance.of(confidence) for confidence in confidences]
        return len(chances) < min(self._longest, LONGEST_ROUND) and pays(
            chances, acceptance.rate, *self._terms.round
        )

    def _worth(self, confidences: Sequence[float]) -> bool:
        """Whether a draft after these is likely enough to be worth its row of a pass."""
        expected, held = self.options[self.chosen].pace, 1.0
        for confidence in confidences:
            held *= self.measured.acceptance.of(confidence)
        return held * expected.seconds > self.measured.passes.each


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 2)


def _as_it_is(plan: Plan, length: int) -> Plan:
    """The same plan, but nothing more is drafted."""
    return Plan.flowing(length, min(length, plan.chunk), plan.credit)
