"""Which plan is best, given what was measured. Nothing here remembers anything."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from draftwire.errors import InvalidRequest
from edge_client.pace import Pace, Times
from edge_client.plan import Plan
from edge_client.rounds import best_length

AHEAD = ((4, 2), (8, 2), (24, 2), (24, 4), (64, 2))
"""Windows and chunks to consider where the cloud runs on: early drafts count, frames are cheap.

Larger chunks pay where a pass of two rows takes as long as one of five, and far longer than one.
"""

BEHIND = ((8, 4), (16, 4), (32, 4), (32, 8), (64, 8))
"""Those where it does not: fuller passes are fewer."""

LONGEST_ROUND = 32
"""Drafts of a round that waits for its verdict, at most."""

START_MARGIN, STAY_MARGIN, PLAN_MARGIN = 1.05, 1.02, 1.02
"""How much better splitting must be than the cloud alone to begin and to go on, and another plan
than the present one."""

_GRID = 50  # to a factor of e: times are rounded to 2 %, so that what was played serves again


class Objective(enum.Enum):
    """What a token should take little of."""

    LATENCY = "latency"
    """Time."""
    COST = "cost"
    """The verifier's time, as long as that makes no text slower than the cloud alone."""
    ENERGY = "energy"
    """The device's energy, on the same condition."""


def as_objective(name: Objective | str) -> Objective:
    """The objective of that name. Raises `InvalidRequest`."""
    try:
        return Objective(name)
    except ValueError:
        names = ", ".join(one.value for one in Objective)
        raise InvalidRequest(f"no objective is {name!r}", remedy=f"use one of {names}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Watts:
    """What a device draws: while it drafts, and all the time that a text takes.

    Only their ratio matters for a choice. The defaults are a guess at a phone; measure yours.
    """

    drafting: float = 4.0
    waiting: float = 1.0

    def __post_init__(self) -> None:
        if self.drafting < 0 or self.waiting < 0 or not math.isfinite(self.drafting + self.waiting):
            raise InvalidRequest(f"no device draws {self}", remedy="give two watt figures ≥ 0")


@dataclass(frozen=True, slots=True)
class Terms:
    """What counts, at the present times: seconds, the verifier's seconds, or joules."""

    objective: Objective
    watts: Watts
    times: Times

    def price(self, pace: Pace) -> float:
        """What a token costs."""
        match self.objective:
            case Objective.LATENCY:
                return pace.seconds
            case Objective.COST:
                return pace.pass_s
            case Objective.ENERGY:
                drafting_s = pace.drafts * self.times.draft
                return self.watts.waiting * pace.seconds + self.watts.drafting * drafting_s

    @property
    def round(self) -> tuple[float, float]:
        """F and c: what a round costs apart from its drafts, and what each of them adds."""
        times, watts = self.times, self.watts
        pass_s = times.fixed + times.each
        match self.objective:
            case Objective.LATENCY:
                return times.rtt + pass_s, times.draft + times.each
            case Objective.COST:
                return pass_s, times.each
            case Objective.ENERGY:
                drafting = watts.drafting * times.draft
                each = watts.waiting * (times.draft + times.each) + drafting
                return watts.waiting * (times.rtt + pass_s), each


def candidates(terms: Terms, rate: float, longest: int) -> tuple[Plan, ...]:
    """The plans to choose from: the cloud alone, rounds that wait, drafts that flow.

    Always as many, in the same order. None puts more than `longest` drafts into a pass; where they
    flow, others are under way meanwhile. Run-on spends passes on time: it serves latency only.
    """
    times, latency = terms.times, terms.objective is Objective.LATENCY
    length = max(1, best_length(rate, *terms.round, min(longest, LONGEST_ROUND)))
    under_way = math.ceil(longest * (1 + times.rtt / times.pass_s(longest + 1)))
    return _candidates(run_on(times), length, under_way, latency)


@lru_cache
def _candidates(credit: int, length: int, under_way: int, latency: bool) -> tuple[Plan, ...]:
    flowing = (
        Plan.flowing(min(window, under_way), min(chunk, under_way), credit if latency else 1)
        for window, chunk in (AHEAD if latency else BEHIND)
    )
    return Plan.cloud_alone(credit), Plan.waiting(length), *flowing


class Option(NamedTuple):
    """A plan, and the pace it is thought to have."""

    plan: Plan
    pace: Pace


def choose(options: Sequence[Option], now: int, terms: Terms, to_come: float) -> int:
    """Which of the options to go on with; `options[0]` is the cloud alone, `now` the present one.

    Only a change that pays by a margin is made, the larger one where the cloud stops being alone;
    and splitting ends where it gains next to nothing, for it has its costs. It does not begin for
    the last few tokens `to_come`, which must make up for the round trip until drafts are there.
    """
    alone = options[0].pace
    free = terms.objective is Objective.LATENCY

    def allowed(index: int) -> bool:
        slack = START_MARGIN if index == now else 1.0
        return free or index == 0 or options[index].pace.seconds <= slack * alone.seconds

    prices = [terms.price(option.pace) for option in options]
    best = min(filter(allowed, range(len(options))), key=lambda index: prices[index])
    if best == 0 or not allowed(now):
        return best
    if prices[best] * STAY_MARGIN > prices[0]:
        return 0
    if now == 0 and free and (alone.seconds - prices[best]) * to_come < terms.times.rtt:
        return now
    margin = START_MARGIN if now == 0 else PLAN_MARGIN
    return best if prices[best] * margin < prices[now] else now


def run_on(times: Times) -> int:
    """Credit with which the cloud never waits for more: tokens of four round trips, and some."""
    tokens = 4 * times.rtt / times.single if times.single else 0.0
    return min(256, 32 * math.ceil((tokens + 16) / 32))


def rounded(times: Times) -> Times:
    """Times on a grid of 2 %, the round trip, which varies most, of 4 %."""
    each = round(times.each / times.fixed, 2) * times.fixed if times.fixed else times.each
    return Times(
        rtt=_round(times.rtt, _GRID // 2),
        draft=_round(times.draft),
        single=_round(times.single),
        fixed=_round(times.fixed),
        each=_round(each),
    )


def _round(seconds: float, grid: int = _GRID) -> float:
    return math.exp(round(math.log(seconds) * grid) / grid) if seconds > 1e-4 else 1e-4
