"""What a controller measures as it goes: times, and how often drafts hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Smoothed:
    """Exponentially smoothed value and mean deviation, as TCP smooths its round trip (RFC 6298).

    Only that the first samples weigh as in a plain mean: with the first alone, which is often a
    slow one, TCP would start from it and take many to forget it.
    """

    gain: float = 0.125
    value: float = 0.0
    deviation: float = 0.0
    count: int = 0

    def add(self, sample: float) -> None:
        """Take a sample in."""
        self.count += 1
        if self.count == 1:
            self.value, self.deviation = sample, sample / 2
            return
        gain = max(self.gain, 1 / self.count)
        error = sample - self.value
        self.deviation += 2 * gain * (abs(error) - self.deviation)
        self.value += gain * error


@dataclass(slots=True)
class PassTime:
    """Seconds a pass takes by our rows in it: `single` for one, `fixed` + `each`·rows for more.

    Rows of other sessions count as what a pass takes anyway. The step from one row to two can be
    large, so that one line through both would be wrong everywhere. The line is least squares with
    exponential forgetting, drawn toward level while all passes are of about one size.
    """

    forget: float = 0.9
    single: Smoothed = field(default_factory=lambda: Smoothed(gain=0.25))
    _weight: float = 0.0
    _rows: float = 0.0
    _seconds: float = 0.0
    _rows_var: float = 0.0
    _cov: float = 0.0

    def add(self, rows: int, seconds: float) -> None:
        """Take a pass in."""
        if rows <= 1:
            self.single.add(seconds)
            return
        old = self._weight * self.forget
        self._weight = old + 1
        row_error, time_error = rows - self._rows, seconds - self._seconds
        self._rows += row_error / self._weight
        self._seconds += time_error / self._weight
        share = old / self._weight
        self._rows_var = self.forget * self._rows_var + share * row_error**2
        self._cov = self.forget * self._cov + share * row_error * time_error

    @property
    def each(self) -> float:
        """Seconds one more row costs."""
        level = self._rows or 1.0  # rows² of pull toward a level line
        return max(0.0, self._cov / (self._rows_var + level))

    @property
    def fixed(self) -> float:
        """Seconds of a pass apart from its rows; as long as `single` while no other was seen."""
        if not self._weight:
            return self.single.value
        return max(0.0, self._seconds - self.each * self._rows)


_EDGES = (0.3, 0.5, 0.7, 0.85, 0.95, 0.99)


class Acceptance:
    """How often drafts hold, over all and by the drafter's confidence in them.

    A confidence says little by itself: a small model can be sure and wrong, and an equal one
    unsure and right. So confidences are sorted into bins and each bin learns its own rate, from
    the overall one, which begins at `prior`; both weigh `weight` drafts for good, so that a run
    of luck promises nothing. Evidence ages with the text, drafted or not: what held a page ago
    says little of what holds here.
    """

    def __init__(self, prior: float = 0.8, weight: float = 2.0, forget: float = 0.985) -> None:
        self._prior = prior
        self._weight = weight
        self._forget = forget
        self._bins = [_Counts() for _ in range(len(_EDGES) + 1)]
        self._all = _Counts()

    def add(self, outcomes: Sequence[tuple[float, bool]], tokens: int) -> None:
        """The text grew by `tokens`; drafts were judged: confidence, and whether one held."""
        age = self._forget**tokens
        for counts in (self._all, *self._bins):
            counts.held *= age
            counts.judged *= age
        for confidence, held in outcomes:
            for counts in (self._all, self._bins[_bin(confidence)]):
                counts.held += held
                counts.judged += 1

    @property
    def rate(self) -> float:
        """α: the chance that the next draft holds, nothing else known."""
        return self._all.share(self._prior, self._weight)

    def of(self, confidence: float) -> float:
        """The chance that a draft of this confidence holds."""
        return self._bins[_bin(confidence)].share(self.rate, self._weight)


@dataclass(slots=True)
class _Counts:
    """Drafts judged and those that held, older ones counting less."""

    held: float = 0.0
    judged: float = 0.0

    def share(self, prior: float, weight: float) -> float:
        return (self.held + weight * prior) / (self.judged + weight)


def _bin(confidence: float) -> int:
    return sum(confidence >= edge for edge in _EDGES)
