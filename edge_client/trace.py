"""Why a controller chose as it did: one JSON line a round.

A line holds what the round brought, the estimates after it, and the plan that follows. Times are
milliseconds, `at_s` is seconds of the device's own clock.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from draftwire.errors import InvalidRequest
from draftwire.reason import reason
from edge_client.plan import Controller, Plan, Round, View


class TracedController:
    """A controller whose rounds are written down, each as a line without its end."""

    def __init__(
        self, inner: Controller, write: Callable[[str], object], generation: int = 1
    ) -> None:
        self._inner = inner
        self._write = write
        self._generation = generation
        self._last: Plan | None = None
        self._late = False
        self._drafts_s: list[float] = []  # since the last round

    @property
    def patience_s(self) -> float:
        """The inner controller's."""
        return self._inner.patience_s

    def plan(self, view: View) -> Plan:
        """The inner controller's."""
        self._late |= view.late
        self._last = self._inner.plan(view)
        return self._last

    def drafted(self, seconds: float, fed: int) -> None:
        """Passed on."""
        self._drafts_s.append(seconds)
        self._inner.drafted(seconds, fed)

    def judged(self, outcome: Round) -> None:
        """Passed on, and written down."""
        expected = self._inner.explain().get("expected_ms")
        self._inner.judged(outcome)
        line = {
            "generation": self._generation,
            "at_s": round(outcome.at, 4),
            "first": outcome.first,
            "under": _described(self._last),
            "expected_ms": expected,
            "drafts": self._drafts(),
            "outcome": _outcome(outcome),
            **self._inner.explain(),
        }
        line["next_ms"], line["expected_ms"] = line.get("expected_ms"), expected
        self._write(json.dumps(line, separators=(",", ":")))

    def explain(self) -> Mapping[str, Any]:
        """The inner controller's."""
        return self._inner.explain()

    def _drafts(self) -> dict[str, Any]:
        """The drafts that came since the last round, and whether one was late."""
        times, self._drafts_s = self._drafts_s, []
        late, self._late = self._late, False
        return {
            "count": len(times),
            "mean_ms": round(sum(times) / len(times) * 1e3, 2) if times else None,
            "longest_ms": round(max(times) * 1e3, 2) if times else None,
            "late": late,
        }


class TraceFile:
    """A file that traces are added to, whose generations are numbered from 1.

    Raises `InvalidRequest` if it can't be written.
    """

    def __init__(self, path: str | Path) -> None:
        self._generations = itertools.count(1)
        try:
            self._file = Path(path).open("a", encoding="utf-8", buffering=1)  # noqa: SIM115
        except OSError as error:
            raise InvalidRequest(
                f"the trace can't be written to {path}: {reason(error)}", remedy="give another file"
            ) from error

    def of(self, controller: Controller) -> Controller:
        """The controller of the next generation, traced."""
        return TracedController(controller, self._write, next(self._generations))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, line: str) -> None:
        self._file.write(f"{line}\n")


def read_trace(path: str | Path) -> list[dict[str, Any]]:
    """The lines of a trace file. Raises `InvalidRequest` if it can't be read or is none."""
    try:
        lines = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
        if not all("outcome" in line and "under" in line for line in lines):
            raise ValueError("a line is no round")
    except OSError as error:
        raise InvalidRequest(
            f"{path} can't be read: {reason(error)}", remedy="give a file written with --trace"
        ) from error
    except (ValueError, TypeError) as error:
        raise InvalidRequest(
            f"{path} is no trace: {reason(error)}", remedy="write one with --trace FILE"
        ) from error
    return lines


def _described(plan: Plan | None) -> dict[str, Any]:
    if plan is None:
        return {"mode": "none", "window": 0, "chunk": 0, "credit": 0}
    return {
        "mode": plan.mode,
        "window": plan.window,
        "chunk": plan.chunk,
        "credit": plan.credit,
    }


def _outcome(outcome: Round) -> dict[str, Any]:
    hint = outcome.hint
    return {
        "committed": outcome.committed,
        "sent": outcome.sent,
        "judged": len(outcome.outcomes),
        "held": sum(held for _, held in outcome.outcomes),
        "rtt_ms": None if outcome.rtt_s is None else round(outcome.rtt_s * 1e3, 2),
        "queue_ms": round(outcome.queue_s * 1e3, 2),
        "pass_ms": round(outcome.pass_s * 1e3, 2),
        "rows": outcome.pass_rows,
        "remaining": outcome.remaining,
        "suggested_k": hint.suggested_k if hint else None,
        "load_percent": hint.load_percent if hint else None,
    }
