"""What rounds and latencies add up to, exactly: counts are kept, never averages of averages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from draftwire.errors import InternalError


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundStats:
    """Counts over rounds, from which every rate follows.

    `accepted_histogram[n]` rounds accepted n drafts. Draft number i (from 0) was judged
    `judged[i]` times, which is to say all drafts before it held, and held `held[i]` times.
    Drafts after a rejection were sent but never judged: they are in `drafted` only.
    """

    rounds: int
    drafted: int
    accepted: int
    committed: int
    accepted_histogram: tuple[int, ...]
    judged: tuple[int, ...]
    held: tuple[int, ...]

    @property
    def acceptance_rate(self) -> float:
        """α: share of judged drafts that held; 0 if none was judged."""
        return _share(sum(self.held), sum(self.judged))

    @property
    def acceptance_by_position(self) -> tuple[float, ...]:
        """α_i of draft number i, given that the drafts before it held."""
        return tuple(_share(h, j) for h, j in zip(self.held, self.judged, strict=True))

    @property
    def block_efficiency(self) -> float:
        """τ: tokens committed per target pass, corrections and bonus tokens included."""
        return _share(self.committed, self.rounds)

    @property
    def utilisation(self) -> float:
        """Share of all drafted tokens that were accepted: what drafting ahead wastes lowers it."""
        return _share(self.accepted, self.drafted)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencySummary:
    """Order statistics of a sample, in the unit of its values; all 0 for an empty one."""

    count: int = 0
    median: float = 0.0
    p5: float = 0.0
    p95: float = 0.0


def summarise_rounds(rounds: Iterable[tuple[int, int, int]]) -> RoundStats:
    """Sum up rounds given as (drafted, accepted, committed) token counts, one per target pass.

    Raises `InternalError` if a round accepts more than it drafted or committed.
    """
    histogram: list[int] = []
    judged: list[int] = []
    held: list[int] = []
    total = [0, 0, 0, 0]
    for drafted, accepted, committed in rounds:
        if not 0 <= accepted <= min(drafted, committed):
            raise InternalError(f"accepted {accepted} of {drafted} drafted, {committed} committed")
        _count(histogram, accepted)
        for i in range(min(accepted + 1, drafted)):
            _count(judged, i)
        for i in range(accepted):
            _count(held, i)
        total = [t + n for t, n in zip(total, (1, drafted, accepted, committed), strict=True)]
    held += [0] * (len(judged) - len(held))
    return RoundStats(
        rounds=total[0],
        drafted=total[1],
        accepted=total[2],
        committed=total[3],
        accepted_histogram=tuple(histogram),
        judged=tuple(judged),
        held=tuple(held),
    )


def summarise_latencies(values: Iterable[float]) -> LatencySummary:
    """Median, 5th and 95th percentile, linear between neighbours."""
    sample = np.fromiter(values, np.float64)
    if not sample.size:
        return LatencySummary()
    p5, median, p95 = np.quantile(sample, (0.05, 0.5, 0.95)).tolist()
    return LatencySummary(count=sample.size, median=median, p5=p5, p95=p95)


def _count(counts: list[int], index: int) -> None:
    counts.extend([0] * (index + 1 - len(counts)))
    counts[index] += 1


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
