"""What to expect of splitting, from times measured: the controller's own model of a token's time.

Nothing here runs a model or a network; `survey` measures what it reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from edge_client.choice import (
    START_MARGIN,
    Objective,
    Option,
    Terms,
    Watts,
    candidates,
    choose,
    rounded,
)
from edge_client.estimates import Acceptance
from edge_client.pace import Pace, Times, pace

FARTHEST_S = 2.0
"""Round trip up to which the break-even is looked for."""

LONGEST = 64
"""Drafts of a pass, at most, where the verifier gives no other hint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """At a round trip of `rtt_s`: the best mode, and seconds and joules a token, split and alone.

    `speedup` is of the text's pace, once it flows.
    """

    rtt_s: float
    mode: str
    window: int
    seconds: float
    alone_s: float
    joules: float
    alone_joules: float

    @property
    def speedup(self) -> float:
        """How many times as fast as the cloud alone."""
        return self.alone_s / self.seconds

    def over(self, tokens: int, start_s: float, read_s: float) -> float:
        """Speed-up over a whole text of `tokens`.

        It starts after `start_s`, split or not, and the cloud writes alone while the drafter reads
        the prompt, for `read_s`.
        """
        alone_s = start_s + tokens * self.alone_s
        alone_tokens = min(float(tokens), read_s / self.alone_s)
        split_s = start_s + alone_tokens * self.alone_s + (tokens - alone_tokens) * self.seconds
        return alone_s / split_s

    def as_json(self) -> Mapping[str, Any]:
        """For a script."""
        return {
            "rtt_ms": round(1e3 * self.rtt_s, 2),
            "mode": self.mode,
            "window": self.window,
            "token_ms": round(1e3 * self.seconds, 2),
            "alone_ms": round(1e3 * self.alone_s, 2),
            "speedup": round(self.speedup, 3),
            "joules_per_token": round(self.joules, 4),
            "alone_joules_per_token": round(self.alone_joules, 4),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """Times as measured, how often drafts held, and what tokens should take little of.

    `alone_s` is what a token takes by the cloud alone, if that was measured by itself: beside a
    device that drafts on the same memory, passes take longer.
    """

    times: Times
    acceptance: Acceptance
    objective: Objective = Objective.LATENCY
    watts: Watts = Watts()  # noqa: RUF009 (frozen)
    longest: int = LONGEST
    alone_s: float = 0.0

    def at(self, rtt_s: float | None = None) -> Expected:
        """What the controller would take, at the round trip measured or at another."""
        times = self.times if rtt_s is None else replace(self.times, rtt=rtt_s)
        terms = Terms(self.objective, self.watts, rounded(times))
        runs = self.acceptance.runs()
        plans = candidates(terms, self.acceptance.rate, self.longest)
        options = [Option(plan, pace(plan, terms.times, runs)) for plan in plans]
        if self.alone_s:
            options[0] = Option(plans[0], Pace(self.alone_s, self.alone_s, 1.0, 0.0))
        best = options[choose(options, 0, terms, to_come=1000)]
        energy = Terms(Objective.ENERGY, self.watts, terms.times)
        return Expected(
            rtt_s=times.rtt,
            mode=best.plan.mode,
            window=best.plan.window,
            seconds=best.pace.seconds,
            alone_s=options[0].pace.seconds,
            joules=energy.price(best.pace),
            alone_joules=energy.price(options[0].pace),
        )

    def break_even_s(self) -> float | None:
        """The longest round trip at which splitting pays; 0 if at none, None if at all to 2 s."""
        if self._pays(FARTHEST_S):
            return None
        if not self._pays(0.0):
            return 0.0
        near, far = 0.0, FARTHEST_S
        while far - near > 0.001:
            middle = (near + far) / 2
            near, far = (middle, far) if self._pays(middle) else (near, middle)
        return near

    def _pays(self, rtt_s: float) -> bool:
        expected = self.at(rtt_s)
        return expected.mode != "cloud-alone" and expected.speedup >= START_MARGIN
