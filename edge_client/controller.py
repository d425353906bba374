"""How far to draft: K from round trip, draft time, pass time and acceptance.

A round of K drafts costs F + cK seconds: F is the round trip, the wait for a pass and the pass
itself, c what one more draft adds on both sides. It gives E(K) = 1 + α₁ + α₁α₂ + … tokens, αᵢ
being the chance that draft i holds, and the target's own token is the 1. The time per token
L(K) = (F + cK) / E(K) falls and then rises. So no search is needed: draft on while the next token
pays, which is while P·(F + cK) > c·E(K), with P the chance that all drafts so far and the next
one hold. (That is L(K + 1) < L(K), multiplied out.) The best K grows with log F, not with F.

Cloud-alone, streaming, a token takes the target's pass of one row, whatever the round trip. So
splitting is only worth it where min L is below that.
"""

from __future__ import annotations

from collections.abc import Sequence

from edge_client.estimates import Acceptance, PassTime, Smoothed
from edge_client.plan import Plan, Round, View

PROBE_TOKENS, PROBE_EVERY = 16, 64
"""While the cloud decodes alone, the device drafts along for the first 16 of 64 tokens."""

SINGLES = 2
"""Passes of one row to time before anything is sent; the first after a start is often slow."""

MARGIN = 1.05
"""How much faster the other way must be to change over."""


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

    `longest` bounds K. What it learns outlives a generation, so that one controller serves all
    that share a verifier and drafters.

    The cloud streams while the drafter still reads (a prompt, or what the cloud wrote meanwhile),
    and at first until its pass of one row was timed: else nobody could say what splitting gains.
    The device drafts along then, and now and then while it is left to the cloud, without sending:
    what those drafts would have been worth costs neither verifier nor network anything to know,
    and keeps the way back open.
    """

    def __init__(self, *, longest: int = 32, cloud_credit: int = 32) -> None:
        self.rtt_s = Smoothed()
        self.queue_s = Smoothed()
        self.draft_s = Smoothed()
        self.passes = PassTime()
        self.acceptance = Acceptance()
        self.speculating = True
        self._alone_tokens = 0
        self._longest = longest
        self._cloud = Plan.cloud_alone(cloud_credit)
        self._shadow = Plan.shadow(1, cloud_credit)

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
        length = len(view.confidences)
        last = view.remaining <= 1  # the target's own token comes next, and is the last
        if view.sent:
            return Plan.waiting(length)
        if not self.speculating or view.behind > 1 or not self._timed:
            along = self.speculating or self._alone_tokens % PROBE_EVERY < PROBE_TOKENS
            return self._shadow if along and not last else self._cloud
        if last:
            return Plan.waiting(length) if length else self._cloud
        return Plan.waiting(max(1, length + self._pays(view.confidences)))

    def drafted(self, seconds: float, fed: int) -> None:
        """Time a draft. One that read more than a token first says only what it takes at least."""
        each = seconds / max(1, fed)
        if fed <= 1 or each > self.draft_s.value:
            self.draft_s.add(each)

    def judged(self, outcome: Round) -> None:
        """Learn from a verdict and decide who goes on."""
        self.acceptance.add(outcome.outcomes, outcome.committed)
        if outcome.rtt_s is not None:
            self.rtt_s.add(outcome.rtt_s)
            self.queue_s.add(outcome.queue_s)
        if outcome.pass_rows and not outcome.first:
            self.passes.add(min(outcome.sent + 1, outcome.pass_rows), outcome.pass_s)
        self._alone_tokens += outcome.committed
        if self._timed:
            self._choose()

    @property
    def _timed(self) -> bool:
        """Whether both ways can be compared."""
        return self.passes.single.count >= SINGLES and self.draft_s.count > 0

    def _pays(self, confidences: Sequence[float]) -> bool:
        """Whether to draft another token after these."""
        chances = [self.acceptance.of(confidence) for confidence in confidences]
        return len(chances) < self._longest and pays(
            chances, self.acceptance.rate, self.fixed_s, self.each_s
        )

    def _choose(self) -> None:
        """Split or cloud-alone, whichever is faster by a margin."""
        rate = self.acceptance.rate
        length = max(1, best_length(rate, self.fixed_s, self.each_s, self._longest))
        split_s = time_per_token(length, rate, self.fixed_s, self.each_s)
        gain = self.passes.single.value / split_s
        if self.speculating and gain * MARGIN < 1:
            self.speculating, self._alone_tokens = False, 0
        elif gain > MARGIN:
            self.speculating = True
