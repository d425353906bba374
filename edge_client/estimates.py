"""What a controller measures as it goes: times, and how often drafts hold."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from edge_client.pace import LONGEST, MOST_ROWS, Runs, Times
from edge_client.plan import Round


@dataclass(slots=True)
class Smoothed:
    """Exponentially smoothed value and mean deviation, as TCP smooths its round trip (RFC 6298).

    Only that the first samples weigh as in a plain mean: with the first alone, which is often a
    slow one, TCP would start from it and take many to forget it. And that samples far out are
    kept aside: one or two are an accident, such as a link that stalled, but `surprises` in a row
    mean that things have changed, and the estimate begins anew with them. Where more than the share
    `rare` of the samples is far out, these are no accidents, and count as they come.
    """

    gain: float = 0.125
    surprises: int = 3
    rare: float = 1.0
    value: float = 0.0
    deviation: float = 0.0
    count: int = 0
    _aside: list[float] = field(default_factory=list)
    _far: float = 0.0  # share of samples that were far out, of late

    def add(self, sample: float) -> None:
        """Take a sample in."""
        error = sample - self.value
        far = self.count > self.surprises and abs(error) > 4 * self.deviation + 0.2 * self.value
        self._far += self.gain * (far - self._far)
        if far and self._far <= self.rare:
            if self._aside and (self._aside[-1] > self.value) != (error > 0):
                self._aside.clear()
            self._aside.append(sample)
            if len(self._aside) < self.surprises:
                return
            samples, self.count = self._aside, 0
        else:
            samples = [sample]
        self._aside = []
        for one in samples:
            self._blend(one)

    def _blend(self, sample: float) -> None:
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

    forget: float = 0.95
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
_PLACES = (1, 2, 4, 8)


class Acceptance:
    """How often drafts hold: over all, by the drafter's confidence, and by their place in a run.

    A confidence says little by itself: a small model can be sure and wrong, and an equal one
    unsure and right. So confidences are sorted into bins and each bin learns its own rate, from
    the overall one, which begins at `prior`; both weigh `weight` drafts for good, so that a run
    of luck promises nothing. The first drafts after a correction may hold more seldom than later
    ones: places 1, 2, 3–4, 5–8 and those beyond learn their rates likewise. Evidence ages with the
    text, drafted or not: what held a page ago says little of what holds here.
    """

    def __init__(self, prior: float = 0.8, weight: float = 2.0, forget: float = 0.985) -> None:
        self._prior = prior
        self._weight = weight
        self._forget = forget
        self._bins = [_Counts() for _ in range(len(_EDGES) + 1)]
        self._places = [_Counts() for _ in range(len(_PLACES) + 1)]
        self._all = _Counts()
        self._run = 0

    def add(self, outcomes: Sequence[tuple[float, bool]], tokens: int) -> None:
        """The text grew by `tokens`; drafts were judged: confidence, and whether one held."""
        age = self._forget**tokens
        for counts in (self._all, *self._bins, *self._places):
            counts.held *= age
            counts.judged *= age
        for confidence, held in outcomes:
            place = self._places[_place(self._run)]
            for counts in (self._all, self._bins[_bin(confidence)], place):
                counts.held += held
                counts.judged += 1
            self._run = self._run + 1 if held else 0

    @property
    def rate(self) -> float:
        """α: the chance that the next draft holds, nothing else known."""
        return self._all.share(self._prior, self._weight)

    def of(self, confidence: float) -> float:
        """The chance that a draft of this confidence holds."""
        return self._bins[_bin(confidence)].share(self.rate, self._weight)

    def runs(self) -> Runs:
        """How long runs of drafts hold."""
        rate, weight = self.rate, 8 * self._weight
        by_place = [counts.share(rate, weight) for counts in self._places]
        chances, tokens, held, total = [1.0], [0.0], 1.0, 0.0
        for place in _PLACE_OF:
            total += held
            held *= by_place[place]
            chances.append(held)
            tokens.append(total)
        return Runs(chances, tokens)


@dataclass(slots=True)
class _Counts:
    """Drafts judged and those that held, older ones counting less."""

    held: float = 0.0
    judged: float = 0.0

    def share(self, prior: float, weight: float) -> float:
        return (self.held + weight * prior) / (self.judged + weight)


def _bin(confidence: float) -> int:
    return bisect_right(_EDGES, confidence)


def _place(run: int) -> int:
    return bisect_right(_PLACES, run)


_PLACE_OF = [_place(run) for run in range(LONGEST + MOST_ROWS)]


def _mean() -> Smoothed:
    return Smoothed(gain=0.0, surprises=sys.maxsize)


_LENGTH = 256.0  # tokens expected of the first text


class Measured:
    """All that a controller knows of its surroundings. Times in seconds."""

    def __init__(self) -> None:
        self.rtt_s = Smoothed()
        self.queue_s = Smoothed()
        self.draft_s = Smoothed(rare=0.25)  # a busy device may be slow at every other one
        self.passes = PassTime()
        self.acceptance = Acceptance()
        self._lengths = Smoothed(value=_LENGTH, deviation=_LENGTH, count=1)
        self._length = 0

    @classmethod
    def of_all(cls) -> Self:
        """One that forgets nothing: plain means over a run, not what to go on with after it."""
        measured = cls()
        measured.rtt_s, measured.queue_s, measured.draft_s = (_mean() for _ in range(3))
        measured.passes = PassTime(forget=1.0, single=_mean())
        measured.acceptance = Acceptance(forget=1.0)
        return measured

    @property
    def to_come(self) -> float:
        """Tokens expected of the text yet: as of texts before it, or half as many more."""
        return max(self._lengths.value - self._length, self._length / 2)

    @property
    def times(self) -> Times:
        """The estimates by which a plan is played."""
        return Times(
            rtt=self.rtt_s.value + self.queue_s.value,
            draft=self.draft_s.value,
            single=self.passes.single.value,
            fixed=self.passes.fixed,
            each=self.passes.each,
        )

    def drafted(self, seconds: float, fed: int) -> None:
        """Time a draft. One that read more than a token first says only what it takes at least."""
        each = seconds / max(1, fed)
        if fed <= 1 or each > self.draft_s.value:
            self.draft_s.add(each)

    def learn(self, outcome: Round) -> None:
        """Take in what a verdict taught."""
        if outcome.first and self._length:
            self._lengths.add(self._length)
            self._length = 0
        self._length += outcome.committed
        self.acceptance.add(outcome.outcomes, outcome.committed)
        if outcome.rtt_s is not None:
            self.rtt_s.add(outcome.rtt_s)
            self.queue_s.add(outcome.queue_s)
        if outcome.pass_rows and not outcome.first:
            self.passes.add(min(outcome.sent + 1, outcome.pass_rows), outcome.pass_s)
