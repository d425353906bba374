"""What a change of the link does to the controller: from every profile to every other."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from bench._virtual import PROMPTS, Run, Speeds, World, measure
from draftwire.testing.wire import PROFILES
from edge_client.controller import AdaptiveController
from edge_client.plan import FixedController, Plan

SETTLE_S, SETTLE_ROUNDS = 3.0, 10
"""What the controller may take to settle, whichever is longer."""

_BEFORE, _AFTER = 120, 200  # tokens


@dataclass(frozen=True, slots=True)
class Switch:
    """One change, and milliseconds a token afterwards: settled, and with the best fixed plan."""

    before: str
    after: str
    adaptive: float
    fixed: float

    @property
    def ratio(self) -> float:
        """The controller over the best fixed plan."""
        return self.adaptive / self.fixed


def switches(rate: float, speeds: Speeds, plans: Mapping[str, Plan]) -> list[Switch]:
    """All changes between two profiles. Both ways are timed over the same stretch of text."""
    prompt = PROMPTS[0]
    fixed: dict[str, list[Run]] = {
        name: [
            measure(_world(name, rate, speeds), FixedController(plan), _BEFORE + _AFTER, prompt)
            for plan in plans.values()
        ]
        for name in PROFILES
    }
    done = []
    for before, after in itertools.permutations(PROFILES, 2):
        run, settled = _switch(before, after, rate, speeds)
        best = min(other.pace_ms(settled) for other in fixed[after])
        done.append(Switch(before, after, run.pace_ms(settled), best))
    return done


def outage(rate: float, speeds: Speeds, stall_s: float = 3.0) -> Run:
    """A generation in the middle of which the link delivers nothing for a while."""
    world = _world("lte", rate, speeds)
    stalled: list[int] = []

    def then(count: int) -> None:
        if count >= _BEFORE and not stalled:
            stalled.append(count)
            world.transport.stall(stall_s)

    return measure(world, AdaptiveController(), _BEFORE + _AFTER, then=then)


def _switch(before: str, after: str, rate: float, speeds: Speeds) -> tuple[Run, int]:
    """A run in the middle of which the link changes; and the token by which all has settled."""
    world, marks = _world(before, rate, speeds), list[tuple[float, int]]()

    def then(count: int) -> None:
        if count >= _BEFORE:
            if not marks:
                world.transport.set_profile(PROFILES[after])
            marks.append((asyncio.get_running_loop().time(), count))

    run = measure(world, AdaptiveController(), _BEFORE + _AFTER, PROMPTS[0], then)
    changed_at = marks[0][0]
    settled = next(count for at, count in marks[SETTLE_ROUNDS:] if at >= changed_at + SETTLE_S)
    return run, settled


def _world(profile: str, rate: float, speeds: Speeds) -> World:
    return World(link=PROFILES[profile], rate=rate, speeds=speeds)
