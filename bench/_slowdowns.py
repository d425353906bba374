"""What a device that slows down in mid-text, or stops for a while, does to the controller."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench._virtual import GPU, PROMPTS, Compared, Run, World, draft_model, measure, target_model
from draftwire.testing.wire import PROFILES
from draftwire.types import Tokens
from edge_client.branch import Origin
from edge_client.choice import Objective
from edge_client.controller import AdaptiveController
from edge_client.drafter import Proposal
from edge_client.drafters.table import TableDrafter
from edge_client.plan import Controller, FixedController, Plan

DRAFTS_MS = (7.0, 100.0, 7.0)
"""How long a draft takes in each third of a text."""

THIRD = 150  # tokens
PROFILE = "wifi"
HANG_S = 10.0

_HANGS_AFTER = 60  # drafts


@dataclass(frozen=True, slots=True, kw_only=True)
class Third(Compared):
    """A third of a text, in which drafts take so long."""

    draft_ms: float

    def __str__(self) -> str:
        """In tokens a second."""
        best = 1e3 / self.fixed[self.best]
        return f"{1e3 / self.adaptive:6.1f} tokens/s, best fixed {best:6.1f} ({self.best})"


def slowdown(
    rate: float, plans: Mapping[str, Plan], objective: Objective = Objective.LATENCY
) -> list[Third]:
    """Decode while the drafter is fast, slow and fast again.

    Fixed plans are timed over the same stretches, with a drafter that is always as in that third:
    nobody could choose better beforehand. Raises if a text differs.
    """
    fixed = {
        draft_ms: {
            name: _thirds(_text(FixedController(plan), rate, (draft_ms,) * 3))
            for name, plan in plans.items()
        }
        for draft_ms in set(DRAFTS_MS)
    }
    controller = AdaptiveController(objective)
    _text(controller, rate, DRAFTS_MS[:1] * 3)
    adaptive = _thirds(_text(controller, rate, DRAFTS_MS))
    return [
        Third(
            draft_ms=draft_ms,
            fixed={name: paces[i] for name, paces in fixed[draft_ms].items()},
            adaptive=adaptive[i],
        )
        for i, draft_ms in enumerate(DRAFTS_MS)
    ]


def hang(controller: Controller, rate: float = 0.97) -> Run:
    """A text in which one draft takes ten seconds, after another text. Raises if it differs."""
    _text(controller, rate, DRAFTS_MS[:1] * 3)
    world = _world(rate)
    world.drafter = _Hanging(draft_model(rate), draft_time_s=DRAFTS_MS[0] / 1e3)
    return _checked(measure(world, controller, 6 * THIRD))


def claims(
    slowed: Mapping[tuple[float, Objective], Sequence[Third]],
) -> dict[str, tuple[float, float]]:
    """What is claimed of a device that slows down: value and limit."""
    fast, slow = (
        max(
            thirds[i].ratio
            for (_, objective), thirds in slowed.items()
            if objective is Objective.LATENCY
        )
        for i in range(2)
    )
    worst = max(thirds[1].to_cloud for thirds in slowed.values())
    rates = {rate for rate, _ in slowed}
    controllers: list[Controller] = [FixedController(Plan.waiting(4))]
    controllers += map(AdaptiveController, Objective)
    pause_s = max(longest_pause_s(hang(controller)) for controller in controllers)
    return {
        "ratio to the best fixed plan, a third of fast drafts, largest": (fast, 1.05),
        "ratio to the best fixed plan, then a third of slow ones, largest": (slow, 1.05),
        "ratio to the cloud alone in that third, any objective, largest": (worst, 1.05),
        "tokens until drafts are sent again when they are fast again, most": (
            max(map(tokens_to_return, rates)),
            80.0,
        ),
        "longest pause of a text while a draft takes 10 s, seconds": (pause_s, 1.2),
    }


def tokens_to_return(rate: float) -> float:
    """Tokens from when the device is fast again to the first draft that is sent and holds."""
    controller = AdaptiveController()
    _text(controller, rate, DRAFTS_MS[:1] * 3)
    run = _text(controller, rate, DRAFTS_MS)
    origins = [commit.origin for _, batch in run.commits for commit in batch]
    return origins.index(Origin.ACCEPTED, 2 * THIRD) - 2 * THIRD


def longest_pause_s(run: Run) -> float:
    """The longest time between two batches."""
    times = [at for at, _ in run.commits]
    return max(after - before for before, after in itertools.pairwise(times))


class _Hanging(TableDrafter):
    """Does not answer for a while, once."""

    async def draft(self, keep: int, tokens: Tokens) -> Proposal | None:
        if self.drafted == _HANGS_AFTER:
            await asyncio.sleep(HANG_S)
        return await super().draft(keep, tokens)


def _world(rate: float) -> World:
    return World(link=PROFILES[PROFILE], rate=rate, speeds=GPU)


def _text(controller: Controller, rate: float, drafts_ms: Sequence[float]) -> Run:
    world = _world(rate)

    def then(count: int) -> None:
        world.drafter.draft_time_s = drafts_ms[min(count // THIRD, 2)] / 1e3

    then(0)
    return _checked(measure(world, controller, 3 * THIRD, then=then))


def _checked(run: Run) -> Run:
    assert run.tokens == target_model().generate(PROMPTS[0], len(run.tokens))
    return run


def _thirds(run: Run) -> list[float]:
    return [run.pace_ms(i * THIRD, (i + 1) * THIRD) for i in range(3)]
