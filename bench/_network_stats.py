"""What the runs of a record add up to."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from bench._network_record import Record
from bench._settings import CLOUD, Cell
from draftwire.stats import LatencySummary, RoundStats, summarise_latencies, summarise_rounds


@dataclass(frozen=True)
class Setting:
    """All repetitions of one setting in one cell, or of what takes no network."""

    name: str
    runs: Mapping[int, Mapping[str, Any]]
    """By repetition."""

    @cached_property
    def speeds(self) -> dict[int, float]:
        """Tokens per second from request to last token, by repetition."""
        return {number: speed(run) for number, run in self.runs.items()}

    @property
    def speed(self) -> float:
        """The median."""
        return statistics.median(self.speeds.values())

    def over(self, other: Setting) -> list[float]:
        """Ratios of speeds to another setting's in the same repetition."""
        return [one / other.speeds[n] for n, one in self.speeds.items() if n in other.speeds]

    @property
    def ttft_ms(self) -> float:
        """Time to the first token, median."""
        return statistics.median(float(run["deliveries"][0][0]) for run in self.runs.values())

    @property
    def tpot_ms(self) -> float:
        """Mean time per token after the first delivery's first, median over repetitions."""
        return statistics.median(map(_tpot_ms, self.runs.values()))

    @property
    def gaps_ms(self) -> LatencySummary:
        """Times between one token and the next; 0 within a delivery."""
        return summarise_latencies(
            gap for run in self.runs.values() for gap in _gaps_ms(run["deliveries"])
        )

    @property
    def rounds(self) -> RoundStats:
        """Rounds of all repetitions; none where there are no passes."""
        return summarise_rounds(
            tuple(one) for run in self.runs.values() for one in run.get("rounds", ())
        )

    def per_token(self, name: str) -> float | None:
        """A count of the runs, per committed token; None if they don't have it."""
        if any(name not in run for run in self.runs.values()):
            return None
        counts = [run[name] for run in self.runs.values()]
        total = sum(sum(one) if isinstance(one, list) else one for one in counts)
        return float(total / sum(map(tokens, self.runs.values())))

    @property
    def estimate_errors(self) -> list[float]:
        """How far what the controller expected is from what happened, by repetition, signed."""
        return [
            run["expected_ms"] / run["taken_ms"] - 1
            for run in self.runs.values()
            if run.get("taken_ms")
        ]

    @property
    def estimate_error(self) -> float | None:
        """The same of all repetitions together; None where nothing was expected."""
        expected = sum(run.get("expected_ms", 0.0) for run in self.runs.values())
        taken = sum(run.get("taken_ms", 0.0) for run in self.runs.values())
        return expected / taken - 1 if taken else None


@dataclass(frozen=True, slots=True)
class CellFigures:
    """The settings of one cell."""

    cell: Cell
    settings: Mapping[str, Setting]

    def best(self, *kinds: str) -> Setting | None:
        """The fastest fixed setting whose name begins with one of these; None if none ran."""
        found = [one for name, one in self.settings.items() if name.startswith(kinds)]
        return max(found, key=lambda one: one.speed, default=None)

    @property
    def cloud(self) -> Setting | None:
        """The cloud alone."""
        return self.settings.get(CLOUD)


def cells(record: Record) -> list[CellFigures]:
    """The cells of which there is any run, in the form's order."""
    done = []
    for cell in record.form.cells:
        runs = [run for run in record.runs if _of(run) == cell]
        settings = {name: _setting(name, runs) for name in record.form.settings}
        present = {name: one for name, one in settings.items() if one.runs}
        if present:
            done.append(CellFigures(cell, present))
    return done


def alone(record: Record) -> list[Setting]:
    """What takes no network."""
    runs = [run for run in record.runs if "network" not in run]
    return [_setting(name, runs) for name in dict.fromkeys(run["setting"] for run in runs)]


def texts(record: Record) -> Iterator[tuple[tuple[str, float], set[str]]]:
    """For each prompt and temperature the different texts that the split system gave."""
    found: dict[tuple[str, float], set[str]] = {}
    for run in record.runs:
        if "network" in run:
            found.setdefault((run["prompt"], run["temperature"]), set()).add(run["text"])
    yield from found.items()


def speed(run: Mapping[str, Any]) -> float:
    """Tokens per second from request to last token."""
    return float(tokens(run) / run["deliveries"][-1][0] * 1e3)


def tokens(run: Mapping[str, Any]) -> int:
    """Length of the text."""
    return sum(count for _, count in run["deliveries"])


def _tpot_ms(run: Mapping[str, Any]) -> float:
    deliveries = run["deliveries"]
    return float((deliveries[-1][0] - deliveries[0][0]) / max(1, tokens(run) - 1))


def _gaps_ms(deliveries: Sequence[Sequence[float]]) -> Iterator[float]:
    before = None
    for at_ms, count in deliveries:
        if before is not None:
            yield at_ms - before
        yield from [0.0] * (int(count) - 1)
        before = at_ms


def _of(run: Mapping[str, Any]) -> Cell | None:
    return Cell(run["network"], run["drafter"], run["temperature"]) if "network" in run else None


def _setting(name: str, runs: Sequence[Mapping[str, Any]]) -> Setting:
    return Setting(name, {run["repetition"]: run for run in runs if run["setting"] == name})
