"""What to tell devices of the load: how many drafts a round serve all sessions best.

A pass over B sessions with K drafts each takes t₀ + c·B·(K + 1) seconds and commits B·E(K) tokens,
E(K) = 1 + α + … + α^K. So tokens per second are most where (t₀/B + c + c·K) / E(K) is least: few
sessions leave room for long drafts, and a verifier that computes all it can has none for drafts
that seldom hold.
"""

from __future__ import annotations

from draftwire.types import Hint

LOOK_EVERY = 16
"""Passes between two looks, so that verdicts are not full of hints."""

CROWD = 1.5
"""Sessions of a pass, on average, below which there is no opinion: a lone one knows best itself."""

_STEP = 10  # percent of load, in whole steps
_FORGET = 0.95


def best_draft_length(
    sessions: float, rate: float, fixed_s: float, each_s: float, longest: int
) -> int:
    """K that maximises committed tokens per second, 1 at least.

    `sessions` take part in a pass of `fixed_s` + `each_s`·rows seconds; drafts hold at `rate`.
    """
    fixed = fixed_s / max(1.0, sessions) + each_s
    held = total = 1.0
    for length in range(longest):
        held *= rate
        if held * (fixed + each_s * length) <= each_s * total:
            return max(1, length)
        total += held
    return longest


class LoadHint:
    """Learns from passes and says what serves all; `current` changes seldom."""

    def __init__(self, budget: int, longest: int) -> None:
        self.current = Hint()
        self._budget = budget
        self._longest = longest
        self._passes = 0
        self._load = 0.0  # rows a pass, smoothed, as what follows
        self._sessions = 0.0
        self._held = self._judged = 0.0
        self._weight = self._rows = self._seconds = self._rows_var = self._cov = 0.0

    def ran(self, rows: int, sessions: int, seconds: float) -> None:
        """A pass of so many rows over so many sessions ran."""
        self._passes += 1
        gain = max(1 - _FORGET, 1 / self._passes)
        self._load += gain * (rows - self._load)
        self._sessions += gain * (sessions - self._sessions)
        if rows > 1:  # a pass of one row is of another kind
            self._fit(rows, seconds)
        if self._passes % LOOK_EVERY == 0:
            self._look()

    def judged(self, drafts: int, accepted: int) -> None:
        """A session had so many drafts judged and accepted; those after a rejection don't count."""
        self._held = _FORGET * self._held + accepted
        self._judged = _FORGET * self._judged + min(drafts, accepted + 1)

    def _fit(self, rows: int, seconds: float) -> None:
        """Least squares of seconds over rows, older passes counting less."""
        old = self._weight * _FORGET
        self._weight = old + 1
        row_error, time_error = rows - self._rows, seconds - self._seconds
        self._rows += row_error / self._weight
        self._seconds += time_error / self._weight
        share = old / self._weight
        self._rows_var = _FORGET * self._rows_var + share * row_error**2
        self._cov = _FORGET * self._cov + share * row_error * time_error

    def _look(self) -> None:
        load = min(100, _STEP * round(100 * self._load / self._budget / _STEP))
        length = 0
        if self._judged and self._weight and self._sessions >= CROWD:
            each_s = max(0.0, self._cov / (self._rows_var + self._rows))
            fixed_s = max(0.0, self._seconds - each_s * self._rows)
            rate = self._held / self._judged
            length = best_draft_length(self._sessions, rate, fixed_s, each_s, self._longest)
            told = self.current.suggested_k
            if told and abs(length - told) <= max(1, told // 4):
                length = told
        self.current = Hint(suggested_k=length, load_percent=load)
