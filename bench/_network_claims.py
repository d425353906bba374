"""What is claimed of the benchmark over networks, held against a record."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench._network_record import Record
from bench._network_stats import CellFigures, cells, texts
from bench._settings import ADAPTIVE, CLOUD, Q4, Cell

FIXED_KINDS = (CLOUD, "waiting", "pipelined", "run-on")
FLOWING = ("pipelined", "run-on")
NEAR, FAR = Cell("lan", Q4), Cell("lte", Q4)
"""Where the network should hardly matter: the draft model as it is, 1 and 60 ms away."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A figure and what it must reach; `most` if it must stay below."""

    text: str
    value: float
    limit: float
    most: bool = False

    @property
    def holds(self) -> bool:
        """Whether it does."""
        return self.value <= self.limit if self.most else self.value >= self.limit


def claims(record: Record) -> list[Claim]:
    """Whatever the record has the runs for."""
    figures = cells(record)
    return [*_of_the_controller(figures), *_of_pipelining(figures), *_of_texts(record)]


def broken(record: Record) -> int:
    """Texts that came out in more than one way, and streams that broke."""
    differing = sum(len(found) > 1 for _, found in texts(record))
    return differing + _reopened(record)


def table(found: Sequence[Claim]) -> str:
    """The claims in Markdown."""
    lines = ["| | measured | claimed | |", "|---|---|---|---|"]
    for claim in found:
        sign, verdict = "≤" if claim.most else "≥", "" if claim.holds else "**not reached**"
        lines.append(f"| {claim.text} | {claim.value:.3g} | {sign} {claim.limit:g} | {verdict} |")
    return "\n".join(lines) + "\n"


def _of_the_controller(figures: Sequence[CellFigures]) -> Iterator[Claim]:
    to_best, to_cloud, errors = dict[Cell, float](), dict[Cell, float](), list[float]()
    for one in figures:
        ours, best = one.settings.get(ADAPTIVE), one.best(*FIXED_KINDS)
        if ours is None:
            continue
        errors += map(abs, ours.estimate_errors)
        if best is not None:
            to_best[one.cell] = statistics.median(ours.over(best))
        if one.cloud is not None:
            to_cloud[one.cell] = statistics.median(ours.over(one.cloud))
    if to_best:
        worst = min(to_best, key=lambda cell: to_best[cell])
        overall = statistics.geometric_mean(to_best.values())
        text = (
            f"speed of the controller over that of the best fixed setting, mean of {len(to_best)}"
        )
        yield Claim(text, overall, 0.9)
        yield Claim(f"the same, least ({worst})", to_best[worst], 0.9)
    if to_cloud:
        worst = min(to_cloud, key=lambda cell: to_cloud[cell])
        yield Claim(f"its speed over cloud-alone's, least ({worst})", to_cloud[worst], 0.95)
    if errors:
        text = "error of its estimate of the time per token, median over texts"
        yield Claim(text, statistics.median(errors), 0.15, most=True)


def _of_pipelining(figures: Sequence[CellFigures]) -> Iterator[Claim]:
    by_cell = {one.cell: one for one in figures}
    near, far = by_cell.get(NEAR), by_cell.get(FAR)
    flowing = far.best(*FLOWING) if far else None
    if far is None or flowing is None:
        return
    if near is not None and flowing.name in near.settings:
        ratio = statistics.median(flowing.over(near.settings[flowing.name]))
        yield Claim(f"{flowing.name}, 60 ms away over 1 ms away", ratio, 0.9)
    if waiting := far.best("waiting"):
        ratio = statistics.median(flowing.over(waiting))
        yield Claim(f"{flowing.name} over {waiting.name}, 60 ms away", ratio, 1.25)
    if far.cloud is not None:
        ratio = statistics.median(flowing.over(far.cloud))
        yield Claim(f"{flowing.name} over {CLOUD}, 60 ms away", ratio, 2.5)


def _of_texts(record: Record) -> Iterator[Claim]:
    found = list(texts(record))
    differing = sum(len(some) > 1 for _, some in found)
    yield Claim(f"texts of {len(found)} that differ between settings", differing, 0, most=True)
    yield Claim("streams that broke", _reopened(record), 0, most=True)


def _reopened(record: Record) -> int:
    return len([run for run in record.runs if run.get("streams", 1) != 1])
