"""Plots of the benchmark over networks. matplotlib is imported when something is drawn."""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench._network_record import Record
from bench._network_stats import CellFigures, cells
from bench._settings import ADAPTIVE, CHANGES, CHANGING, CLOUD, Q4
from draftwire.errors import MissingDependency
from draftwire.testing.wire import PROFILES


def draw(record: Record, folder: Path) -> list[Path]:
    """Draw what the record has the cells for; returns the files.

    Raises `MissingDependency` without matplotlib.
    """
    figures = cells(record)
    folder.mkdir(parents=True, exist_ok=True)
    drawn = [_over_rtt(figures, folder / "speed-over-rtt.svg")]
    drawn.append(_gains(figures, folder / "gain-by-cell.svg"))
    changing = [one for one in figures if one.cell.network == CHANGING]
    if changing:
        drawn.append(_over_time(changing[0], folder / "changing-network.svg"))
    return drawn


def _over_rtt(figures: Sequence[CellFigures], path: Path) -> Path:
    """Speed of each kind over the round trip, with the draft model as it is."""
    figure, axes = _figure()
    of_q4 = [
        one
        for one in figures
        if one.cell.rtt_ms is not None and one.cell.drafter == Q4 and not one.cell.temperature
    ]
    for label, kinds in _KINDS.items():
        chosen = [(one.cell.rtt_ms, best) for one in of_q4 if (best := one.best(*kinds))]
        if chosen:
            low, middle, high = zip(
                *(
                    (min(s), statistics.median(s), max(s))
                    for s in (best.speeds.values() for _, best in chosen)
                ),
                strict=True,
            )
            rtts = [rtt for rtt, _ in chosen]
            axes.plot(rtts, middle, marker="o", label=label)
            axes.fill_between(rtts, low, high, alpha=0.15)
    axes.set(xscale="log", xlabel="round trip, ms", ylabel="tokens/s", ylim=(0, None))
    ticks = [profile.rtt_ms for profile in PROFILES.values()]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.legend()
    return _saved(figure, path)


def _gains(figures: Sequence[CellFigures], path: Path) -> Path:
    """Speed over that of the cloud alone, by cell and kind."""
    figure, axes = _figure()
    kinds = {label: kinds for label, kinds in _KINDS.items() if kinds != (CLOUD,)}
    shown = [one for one in figures if one.cloud is not None]
    for place, (label, names) in enumerate(kinds.items()):
        bars = [
            (index, statistics.median(best.over(one.cloud)))
            for index, one in enumerate(shown)
            if one.cloud is not None and (best := one.best(*names))
        ]
        at = [index + (place - 1) * 0.27 for index, _ in bars]
        axes.barh(at, [gain for _, gain in bars], height=0.25, label=label)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(shown)), [str(one.cell) for one in shown])
    axes.invert_yaxis()
    axes.set_xlabel("speed over cloud-alone's")
    axes.legend()
    return _saved(figure, path)


def _over_time(one: CellFigures, path: Path) -> Path:
    """Tokens over time while the network changes, in the last repetition."""
    figure, axes = _figure()
    for label, names in _KINDS.items():
        if best := one.best(*names):
            deliveries = best.runs[max(best.runs)]["deliveries"]
            length, points = 0, [(0.0, 0)]
            for at_ms, count in deliveries:
                length += count
                points.append((at_ms / 1e3, length))
            axes.step(
                *zip(*points, strict=True),
                where="post",
                label=label if label == best.name else f"{label}: {best.name}",
            )
    total = points[-1][1]
    for change in CHANGES[1:]:
        stall = f", after {change.stall_s:g} s without" if change.stall_s else ""
        axes.axhline(change.share * total, color="grey", linewidth=0.6)
        axes.text(0, change.share * total, f"{change.profile}{stall}", va="bottom", fontsize=8)
    axes.set(xlabel="seconds", ylabel="tokens")
    axes.legend()
    return _saved(figure, path)


_KINDS: dict[str, tuple[str, ...]] = {
    "cloud-alone": (CLOUD,),
    "best waiting K": ("waiting",),
    "best pipelined": ("pipelined", "run-on"),
    "controller": (ADAPTIVE,),
}


def _figure() -> tuple[Any, Any]:
    try:
        module = importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise MissingDependency(
            "matplotlib is not installed", remedy='pip install "draftwire[bench]"'
        ) from error
    figure = module.Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.grid(alpha=0.3)
    return figure, axes


def _saved(figure: Any, path: Path) -> Path:
    figure.savefig(path, metadata={"Date": None})
    return path
