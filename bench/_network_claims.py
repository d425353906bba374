"""What is claimed of the benchmark over networks, held against a record."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from bench._network_record import Record
from bench._network_stats import CellFigures, cells, texts
from bench._network_tables import FLOWING_HEAD
from bench._settings import ADAPTIVE, CLOUD, Q4, Cell

FIXED_KINDS = (CLOUD, "waiting", "pipelined", "run-on")
FLOWING = ("pipelined", "run-on")
NEAR, FAR = "lan", "lte"
"""The networks 1 and 60 ms away: where drafts flow, the difference should hardly matter."""


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
    return [
        *_of_the_controller(figures),
        *_of_the_estimates(figures),
        *_of_pipelining(figures),
        *_of_texts(record),
    ]


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


def flowing(record: Record) -> str:
    """What drafts that flow gain 60 ms away, for every drafter, in Markdown; "" without runs."""
    rows = [
        f"| {drafter} | {name} | {_told(near)} | {_told(waiting)} | {_told(cloud)} |"
        for drafter, (name, near, waiting, cloud) in _flowing(cells(record)).items()
    ]
    return "\n".join([FLOWING_HEAD, *rows]) + "\n" if rows else ""


def _told(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def _of_the_controller(figures: Sequence[CellFigures]) -> Iterator[Claim]:
    to_best, to_cloud = dict[Cell, float](), dict[Cell, float]()
    to_each = dict[str, list[float]]()
    for one in figures:
        ours, best = one.settings.get(ADAPTIVE), one.best(*FIXED_KINDS)
        if ours is None:
            continue
        if best is not None:
            to_best[one.cell] = statistics.median(ours.over(best))
        if one.cloud is not None:
            to_cloud[one.cell] = statistics.median(ours.over(one.cloud))
        for name, setting in one.settings.items():
            to_each.setdefault(name, []).append(statistics.median(ours.over(setting)))
    if to_best:
        worst = min(to_best, key=lambda cell: to_best[cell])
        overall = statistics.geometric_mean(to_best.values())
        text = (
            f"speed of the controller over that of the best fixed setting, mean of {len(to_best)}"
        )
        yield Claim(text, overall, 0.9)
        yield Claim(f"the same, least ({worst})", to_best[worst], 0.9)
        over = {n: statistics.geometric_mean(r) for n, r in to_each.items() if n != ADAPTIVE}
        best_of_all = min(over, key=lambda name: over[name])
        yield Claim(f"over the best single one for all, {best_of_all}", over[best_of_all], 1.0)
    if to_cloud:
        worst = min(to_cloud, key=lambda cell: to_cloud[cell])
        yield Claim(f"its speed over cloud-alone's, least ({worst})", to_cloud[worst], 0.95)


def _of_the_estimates(figures: Sequence[CellFigures]) -> Iterator[Claim]:
    """Where the network stays as it is. A text has luck, which a cell's texts together average."""
    found = [
        one.settings[ADAPTIVE]
        for one in figures
        if ADAPTIVE in one.settings and one.cell.rtt_ms is not None
    ]
    texts_off = [abs(error) for one in found for error in one.estimate_errors]
    cells_off = [abs(error) for one in found if (error := one.estimate_error) is not None]
    if texts_off:
        what = "error of its estimate of the time per token, median over"
        yield Claim(f"{what} cells", statistics.median(cells_off), 0.15, most=True)
        yield Claim(f"{what} single texts", statistics.median(texts_off), 0.15, most=True)


def _of_pipelining(figures: Sequence[CellFigures]) -> Iterator[Claim]:
    if found := _flowing(figures).get(Q4):
        name, near, waiting, cloud = found
        for text, ratio, limit in (
            (f"{name}, 60 ms away over 1 ms away", near, 0.9),
            (f"{name} over the best that waits, 60 ms away", waiting, 1.25),
            (f"{name} over {CLOUD}, 60 ms away", cloud, 2.5),
        ):
            if ratio is not None:
                yield Claim(text, ratio, limit)


Ratios: TypeAlias = tuple[str, float | None, float | None, float | None]


def _flowing(figures: Sequence[CellFigures]) -> dict[str, Ratios]:
    """The best setting that flows 60 ms away, for each drafter, greedy.

    Its name, and its speed over its own 1 ms away, the best waiting one's and cloud-alone's.
    """
    by_cell, found = {one.cell: one for one in figures}, dict[str, Ratios]()
    for far in figures:
        best = far.best(*FLOWING)
        if (far.cell.network, far.cell.temperature) != (FAR, 0.0) or best is None:
            continue
        near = by_cell.get(Cell(NEAR, far.cell.drafter))
        beside = near.settings.get(best.name) if near else None, far.best("waiting"), far.cloud
        to_near, to_waiting, to_cloud = (
            statistics.median(best.over(one)) if one else None for one in beside
        )
        found[far.cell.drafter] = best.name, to_near, to_waiting, to_cloud
    return found


def _of_texts(record: Record) -> Iterator[Claim]:
    found = list(texts(record))
    differing = sum(len(some) > 1 for _, some in found)
    yield Claim(f"texts of {len(found)} that differ between settings", differing, 0, most=True)
    yield Claim("streams that broke", _reopened(record), 0, most=True)


def _reopened(record: Record) -> int:
    return len([run for run in record.runs if run.get("streams", 1) != 1])
