"""One attempt at a generation: a stream, what it was opened with, and what was sent on it."""

from __future__ import annotations

from dataclasses import dataclass, field

from draftwire.types import ServingLimits, Timing


@dataclass(slots=True, kw_only=True)
class Attempt:
    """What a generation knows of its present stream.

    `committed` tokens were there when it was opened, of which the verifier was thought to hold
    the first `known`, until it answers. Frames keep to `limits` until it says which its own are.
    `unread`: no pass of it has been heard of, so that the next one may read a prompt.
    """

    committed: int = 0
    known: int = 0
    limits: ServingLimits
    unread: bool = True
    sent_at: list[float] = field(default_factory=list)
    """When each of its draft frames was sent."""

    def rtt_s(self, timing: Timing, at: float) -> float | None:
        """The round trip of the last frame that a verdict had heard, which came `at` that time.

        The verifier's own time is taken out. None where it had heard none.
        """
        if not 0 < timing.frames <= len(self.sent_at):
            return None
        away_s = at - self.sent_at[timing.frames - 1]
        return max(0.0, away_s - (timing.heard_us + timing.pass_us) / 1e6)
