"""How far to draft: K from round trip, draft time, pass time and acceptance.

With E(K) the expected tokens of a round, F what a round costs however long it is and c what each
draft adds, a round costs (F + cK) / E(K) a token. That falls and then rises, so that drafting
goes on while the next token pays, and the answer needs no search: P·(F + cK) > c·E(K), with P
the chance that all drafts and the next one hold. Source: docs/design.md and, for the rule,
Chen et al. 2023 and the optimal-stopping view of speculative decoding.
"""

from __future__ import annotations

from collections.abc import Sequence

from edge_client.estimates import Acceptance, PassTime, Smoothed
from edge_client.plan import Plan, Round, View

YOUNG_K = 4
"""Drafts of a round before any was timed."""

PROBE_TOKENS = 32
"""While the cloud decodes alone, a round of drafts is tried after so many tokens."""


def expected_tokens(chances: Sequence[float]) -> float:
    """E(K): tokens of a round whose draft i holds with `chances[i]`, the target's own included."""
    total = held = 1.0
    for chance in chances:
        held *= chance
        total += held
    return total


def pays(chances: Sequence[float], following: float, fixed: float, each: float) -> bool:
    """Whether one more draft, holding with chance `following`, lowers the time per token."""
    held = following
    for chance in chances:
        held *= chance
    return held * (fixed + each * len(chances)) > each * expected_tokens(chances)


def best_length(rate: float, fixed: float, each: float, longest: int) -> int:
    """K that minimises the time per token at a constant acceptance rate."""
    chances: list[float] = []
    while len(chances) < longest and pays(chances, rate, fixed, each):
        chances.append(rate)
    return len(chances)


def time_per_token(length: int, rate: float, fixed: float, each: float) -> float:
    """Expected time per token of rounds of `length` drafts, in the unit of `fixed` and `each`."""
    return (fixed + each * length) / expected_tokens([rate] * length)


class AdaptiveController:
    """Waits for each verdict, with the K that pays; leaves it to the cloud when none does.

    `longest` bounds K. The first tokens are the cloud's, which times its single-row pass while
    the device still reads the prompt.
    """

    def __init__(self, *, longest: int = 32, cloud_credit: int = 32) -> None:
        self._longest = longest
        self._cloud = Plan.cloud_alone(cloud_credit)
        self.rtt_s = Smoothed()
        self.queue_s = Smoothed()
        self.draft_s = Smoothed()
        self.passes = PassTime()
        self.acceptance = Acceptance()
        self.speculating = True
        self._alone_tokens = 0
        self._probing = False

    @property
    def fixed_s(self) -> float:
        """F: round trip, queue and the pass apart from its rows, seconds."""
        return self.rtt_s.value + self.queue_s.value + self.passes.fixed

    @property
    def each_s(self) -> float:
        """c: what one more draft costs, seconds."""
        return self.draft_s.value + self.passes.each

    def plan(self, view: View) -> Plan:
        """Draft one more token, send what there is, or leave it to the cloud."""
        if not self.speculating and not self._probing:
            return self._cloud
        length = len(view.confidences)
        if view.sent:
            return Plan.waiting(max(1, length))
        if length == 0:
            return Plan.waiting(1, credit=1 if self.passes.single.count else 2)
        return Plan.waiting(length + 1 if self._goes_on(view.confidences) else length)

    def drafted(self, seconds: float, fed: int) -> None:
        """Time a draft; those that first read a prompt or a correction don't count."""
        if fed <= 1:
            self.draft_s.add(seconds)

    def judged(self, outcome: Round) -> None:
        """Learn from a verdict and decide who goes on."""
        self.acceptance.add(outcome.outcomes)
        if outcome.rtt_s is not None:
            self.rtt_s.add(outcome.rtt_s)
            self.queue_s.add(outcome.queue_s)
        if outcome.pass_rows == 1 or outcome.outcomes:
            self.passes.add(outcome.pass_rows, outcome.pass_s)
        self._alone_tokens += outcome.committed
        if self._probing and outcome.outcomes:
            self._probing, self._alone_tokens = False, 0
        self._choose_side()

    def _goes_on(self, confidences: Sequence[float]) -> bool:
        if len(confidences) >= self._longest:
            return False
        if not (self.passes.known and self.draft_s.count):
            return len(confidences) < YOUNG_K
        chances = [self.acceptance.of(confidence) for confidence in confidences]
        return pays(chances, self.acceptance.rate, self.fixed_s, self.each_s)

    def _choose_side(self) -> None:
        """Split or cloud-alone, whichever is faster by a margin; probes keep the way back open."""
        if not (self.passes.known and self.passes.single.count and self.draft_s.count):
            return
        rate = self.acceptance.rate
        length = max(1, best_length(rate, self.fixed_s, self.each_s, self._longest))
        split = time_per_token(length, rate, self.fixed_s, self.each_s)
        alone = self.passes.single.value
        if self.speculating and split > 1.1 * alone:
            self.speculating, self._alone_tokens = False, 0
        elif not self.speculating and split < 0.95 * alone:
            self.speculating = True
        if not self.speculating and self._alone_tokens >= PROBE_TOKENS:
            self._probing = True
