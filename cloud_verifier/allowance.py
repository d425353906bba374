"""A limit on wasted drafts."""

from __future__ import annotations

YOUNG_ROUNDS = 16
"""Rounds of a session before its drafts are limited by how few of them hold."""


class Allowance:
    """How many of a device's drafts a pass judges.

    Four times what usually holds, and none where nothing does: a device whose drafts are never
    accepted would else cost a wide pass for each token. What is not judged is still compared with
    the target's own tokens, so that a device that gets better is noticed.
    """

    __slots__ = ("_most", "_rounds", "_run", "withheld")

    def __init__(self, most: int) -> None:
        self._most = most
        self._rounds = 0
        self.withheld = False  # its key has wasted as many as it may for now
        self._run = 0.0  # drafts that hold in a round, smoothed over rounds

    @property
    def drafts(self) -> int:
        """Drafts to judge in the next pass, at most."""
        if self.withheld:
            return 0
        if self._rounds < YOUNG_ROUNDS:
            return self._most
        if self._run < 0.05:
            return 0
        return min(self._most, 2 + round(4 * self._run))

    def learn(self, held: int) -> None:
        """A round ended in which that many drafts held."""
        self._rounds += 1
        self._run += max(0.1, 1 / self._rounds) * (held - self._run)
