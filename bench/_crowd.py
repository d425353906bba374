"""More sessions than the KV has room for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench._fleet import Fleet
from bench._scripts import SHARE_WRONG, Script, acceptance, wrong_at
from cloud_verifier.target import TargetModel

THINK_S = 0.1
HEAD = ["sessions", "room", "K", "α", "tokens/s", "passes", "preemptions", "recomputed/token"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """Sessions to their end on KV for `room` of them at full length."""

    sessions: int
    room: int
    k: int
    alpha: float
    tokens: int
    seconds: float
    passes: int
    preemptions: int
    recomputed: int

    @property
    def tokens_per_s(self) -> float:
        """Committed tokens of all, prompts included in the time."""
        return self.tokens / self.seconds

    def cells(self) -> list[str]:
        """A row of the table."""
        return [
            *(str(n) for n in (self.sessions, self.room, self.k)),
            f"{self.alpha:.2f}",
            f"{self.tokens_per_s:.1f}",
            *(str(n) for n in (self.passes, self.preemptions)),
            f"{self.recomputed / self.tokens:.2f}",
        ]


def run(target: TargetModel, scripts: Sequence[Script], room: int, k: int) -> Crowd:
    """Run sessions whose devices think for a while, with KV for `room` of them."""
    full = len(scripts[0].prompt) + len(scripts[0].text)
    fleet = Fleet(
        target,
        scripts,
        k=k,
        wrong=wrong_at(SHARE_WRONG),
        num_blocks=room * -(-full // target.block_size),
        think_s=THINK_S,
    )
    seconds = fleet.finish()
    return Crowd(
        sessions=len(scripts),
        room=room,
        k=k,
        alpha=acceptance([pair for device in fleet.devices for pair in device.rounds]),
        tokens=fleet.committed,
        seconds=seconds,
        passes=fleet.target.passes,
        preemptions=fleet.tally.preemptions,
        recomputed=fleet.recomputed,
    )
