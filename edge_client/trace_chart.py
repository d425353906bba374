"""A trace, drawn: what was chosen and what came of it over time."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftwire.errors import InvalidRequest, MissingDependency
from draftwire.reason import reason

_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Series:
    """One value over time: seconds and values; None where there was none."""

    name: str
    unit: str
    points: Sequence[tuple[float, float | None]]


def series(rounds: Sequence[Mapping[str, Any]]) -> list[Series]:
    """What a trace shows over time, pauses between generations left out.

    Raises `InvalidRequest` for an empty trace.
    """
    if not rounds:
        raise InvalidRequest("the trace is empty", remedy="generate something with --trace first")
    times = list(_times(rounds))
    gaps = [later - sooner for sooner, later in zip([0.0, *times], times, strict=False)]

    def over_time(name: str, unit: str, values: Iterator[float | None]) -> Series:
        return Series(name, unit, list(zip(times, values, strict=True)))

    outcomes = [one["outcome"] for one in rounds]
    return [
        over_time("drafts sent", "", (float(one["sent"]) for one in outcomes)),
        over_time("window", "", (float(one["under"]["window"]) for one in rounds)),
        over_time(
            "acceptance",
            "",
            (one["held"] / one["judged"] if one["judged"] else None for one in outcomes),
        ),
        over_time("draft", "ms", (one["drafts"]["mean_ms"] for one in rounds)),
        over_time("RTT", "ms", (one["rtt_ms"] for one in outcomes)),
        over_time("pass", "ms", (one["pass_ms"] for one in outcomes)),
        over_time(
            "speed",
            "tokens/s",
            (
                one["committed"] / gap if gap > 0 else None
                for one, gap in zip(outcomes, gaps, strict=True)
            ),
        ),
    ]


def chart(rounds: Sequence[Mapping[str, Any]], width: int = 72) -> str:
    """A chart in text: a line a value, a column a slice of time, its range at the end."""
    lines = []
    for one in series(rounds):
        columns = _columns(one.points, width)
        present = [value for value in columns if value is not None]
        low, high = (min(present), max(present)) if present else (0.0, 0.0)
        figures = f"{_figure(low)} … {_figure(high)}" if present else "none"
        bars = "".join(" " if value is None else _bar(value, low, high) for value in columns)
        unit = f" {one.unit}" if one.unit and present else ""
        lines.append(f"{one.name:>11} {bars} {figures}{unit}")
    modes = [_MODES.get(str(one["under"]["mode"]), "?") for one in rounds]
    lines.append(f"{'mode':>11} {_letters(list(_times(rounds)), modes, width)} {_LEGEND}")
    committed = sum(one["outcome"]["committed"] for one in rounds)
    length_s = list(_times(rounds))[-1]
    lines.append(f"{'':>11} {len(rounds)} rounds, {committed} tokens in {length_s:.1f} s")
    return "\n".join(lines)


def plot(rounds: Sequence[Mapping[str, Any]], path: str | Path) -> None:
    """The same as an image.

    Raises `MissingDependency` without matplotlib, and `InvalidRequest` if it can't be written.
    """
    try:
        figure_module = importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise MissingDependency(
            "matplotlib is not installed", remedy='pip install "draftwire[bench]"'
        ) from error
    shown = series(rounds)
    figure = figure_module.Figure(figsize=(9, 1.6 * len(shown)), layout="constrained")
    for axes, one in zip(figure.subplots(len(shown), 1, sharex=True), shown, strict=True):
        points = [(at, value) for at, value in one.points if value is not None]
        axes.step([at for at, _ in points], [value for _, value in points], where="post")
        axes.set_ylabel(f"{one.name}\n{one.unit}".strip())
        axes.grid(alpha=0.3)
    axes.set_xlabel("seconds")
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise InvalidRequest(
            f"{path} can't be written: {reason(error)}", remedy="give another --png FILE"
        ) from error


_MODES = {"cloud-alone": "c", "waiting": "w", "flowing": "f"}
_LEGEND = "c cloud-alone, w waiting, f flowing"


def _times(rounds: Sequence[Mapping[str, Any]]) -> Iterator[float]:
    """Seconds since the trace began, without what lies between generations."""
    elapsed, before = 0.0, None
    for one in rounds:
        key = one["generation"]
        if before is not None and before[0] == key:
            elapsed += max(0.0, one["at_s"] - before[1])
        before = key, one["at_s"]
        yield elapsed


def _columns(points: Sequence[tuple[float, float | None]], width: int) -> list[float | None]:
    """The mean of each slice of time that has values."""
    end = points[-1][0] or 1.0
    slices: list[list[float]] = [[] for _ in range(width)]
    for at, value in points:
        if value is not None:
            slices[min(width - 1, int(at / end * width))].append(value)
    return [sum(some) / len(some) if some else None for some in slices]


def _letters(times: Sequence[float], letters: Sequence[str], width: int) -> str:
    end = times[-1] or 1.0
    columns = [" "] * width
    for at, letter in zip(times, letters, strict=True):
        columns[min(width - 1, int(at / end * width))] = letter
    return "".join(columns)


def _figure(value: float) -> str:
    """Three digits, and those before the point."""
    return f"{value:.3g}" if 1e-3 <= abs(value) < 999.5 else f"{value:.0f}"


def _bar(value: float, low: float, high: float) -> str:
    """A value's height in its range; in the middle where all are alike, lowest where all are 0."""
    share = (value - low) / (high - low) if high > low else 0.5 if value else 0.0
    return _BARS[min(len(_BARS) - 1, int(share * len(_BARS)))]
