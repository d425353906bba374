"""How fast a plan is: the time from one rejection to the next, played through once.

After a rejection both sides are always in the same state: the cloud has just written its own
token and holds no drafts, and the device hears of it half a round trip later. What happens from
there until the next draft that fails depends on times alone, not on luck, and when token n is
committed does not depend on how long the run turns out to be. So one play without a rejection
gives the times T(1), T(2), … of all runs, and with S(n) the chance that more than n tokens hold

    time per token = Σ S(n − 1)·(T(n) − T(n − 1)) / Σ S(n − 1).

For rounds that wait for their verdict this is (F + cK) / E(K), for the cloud alone the time of its
pass. Where drafts flow while verdicts are out, and where the cloud runs on, no formula is at hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from edge_client.plan import Plan

LONGEST = 48
"""Tokens of a run that are played."""

MOST_ROWS = 33
"""Rows of a session's part of a pass, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds: round trip with the verifier's queue, a draft, and a pass by its rows."""

    rtt: float
    draft: float
    single: float
    fixed: float
    each: float

    def pass_s(self, rows: int) -> float:
        """Seconds of a pass."""
        return self.single if rows <= 1 else self.fixed + self.each * rows


@dataclass(frozen=True, slots=True)
class Pace:
    """What a committed token takes: seconds, seconds and rows of passes, drafts."""

    seconds: float
    pass_s: float
    rows: float
    drafts: float


class _Step(NamedTuple):
    """State after a pass: when it ended, tokens committed, passes' seconds and rows, drafts."""

    at: float
    length: int
    busy: float
    rows: int
    drafts: int


class Runs(NamedTuple):
    """How runs go: chances that 0, 1, … drafts in a row hold, and how many tokens that makes.

    `tokens[n]` is the sum of the first n chances. Both reach to `LONGEST` + `MOST_ROWS`.
    """

    chances: Sequence[float]
    tokens: Sequence[float]


def pace(plan: Plan, times: Times, runs: Runs) -> Pace:
    """What a token takes under a plan. Source of the method: the module's docstring."""
    if not plan.chunk:
        return Pace(times.single, times.single, 1.0, 0.0)
    steps, chances = play(plan, times), runs.chances
    middle, last = (len(steps) - 1) // 2, steps[-1].length
    half = _sums(steps[: middle + 1], runs)
    rest = _sums(steps[middle:], runs)
    # Beyond what was played the second half comes again and again, if the run lasts.
    again = min(0.99, chances[last] / (chances[steps[middle].length] or 1.0))
    seconds, busy, rows, drafts, tokens = (
        first + second / (1 - again) for first, second in zip(half, rest, strict=True)
    )
    return Pace(seconds / tokens, busy / tokens, rows / tokens, drafts / tokens)


def _sums(steps: Sequence[_Step], runs: Runs) -> tuple[float, float, float, float, float]:
    """Seconds, passes' seconds and rows, drafts and tokens, as far as the run lasts."""
    seconds = busy = rows = drafts = 0.0
    before = steps[0]
    for after in steps[1:]:
        chance = runs.chances[before.length]  # that the pass is of this run
        seconds += chance * (after.at - before.at)
        busy += chance * (after.busy - before.busy)
        rows += chance * (after.rows - before.rows)
        drafts += chance * (after.drafts - before.drafts)
        before = after
    tokens = runs.tokens[before.length] - runs.tokens[steps[0].length]
    return seconds, busy, rows, drafts, tokens


@lru_cache(maxsize=512)
def play(plan: Plan, times: Times) -> tuple[_Step, ...]:
    """A run without a rejection, pass by pass, from just after one (cached)."""
    device = _Device(plan, times)
    steps, arrivals = device.steps, device.arrivals
    now, length, busy, rows = 0.0, 0, 0.0, 0
    tip, anchor, heard = 0, -1, 0  # the correction was the first token of the credit
    while length < LONGEST:
        device.draft(now)
        while heard < len(arrivals) and arrivals[heard][0] <= now:
            tip = anchor = arrivals[heard][1]
            heard += 1
        drafts = min(tip - length, MOST_ROWS - 1)
        if drafts > 0:
            length += drafts + (plan.credit > 0)
        elif length < anchor + plan.credit:
            drafts, length = 0, length + 1
        else:  # idle until drafts come
            until = now
            while heard == len(arrivals):
                until += max(times.draft, times.rtt / 8)
                device.draft(until)
            now = max(now, arrivals[heard][0])
            continue
        took = times.pass_s(drafts + 1)
        now, busy, rows = now + took, busy + took, rows + drafts + 1
        steps.append(_Step(now, length, busy, rows, device.drafts))
    return tuple(steps)


class _Device:
    """Drafts as the plan says; `steps` is what it hears of, `arrivals` what comes of it.

    An arrival is when a frame reaches the cloud and the position after its last draft.
    """

    def __init__(self, plan: Plan, times: Times) -> None:
        self.steps = [_Step(0.0, 0, 0.0, 0, 0)]
        self.arrivals: list[tuple[float, int]] = []
        self.drafts = 0
        self._plan = plan
        self._half_s = times.rtt / 2
        self._draft_s = times.draft
        # When it can draft next: first it ends a draft that is dead by then.
        self._at = self._half_s + (times.draft / 2 if plan.pipelined else 0.0)
        self._known = self._end = self._sent = self._next = 0

    def draft(self, until: float) -> None:
        """Draft what can reach the cloud by then."""
        plan, half_s, draft_s = self._plan, self._half_s, self._draft_s
        until -= half_s + draft_s
        while self._at <= until:
            self._hear()
            full = self._end - self._known >= plan.window
            if full or not (plan.pipelined or self._sent <= self._known):
                if self._next == len(self.steps):
                    return
                self._at = self.steps[self._next].at + half_s
                continue
            self._at += draft_s
            self._end += 1
            self.drafts += 1
            self._hear()
            full = self._end - self._known >= plan.window
            if self._end > self._sent and (full or self._end - self._sent >= plan.chunk):
                self._sent = self._end
                self.arrivals.append((self._at + half_s, self._end))

    def _hear(self) -> None:
        """Take in the verdicts that have come."""
        steps, half_s = self.steps, self._half_s
        while self._next < len(steps) and steps[self._next].at + half_s <= self._at:
            self._known = steps[self._next].length
            self._next += 1
        self._sent = max(self._sent, self._known)
        self._end = max(self._end, self._known)
