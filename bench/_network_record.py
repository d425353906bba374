"""The record of the benchmark over networks: JSON lines, a head and then a line for each run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from bench._settings import Cell, Form
from draftwire.errors import InvalidRequest


class Record:
    """A file that runs are added to, and what it holds.

    A repetition of a cell that was cut off is run again as a whole, so that its ratios are of runs
    within minutes; of two lines about one run the later counts.
    """

    def __init__(self, path: Path, head: dict[str, Any], runs: Sequence[dict[str, Any]]) -> None:
        self.path = path
        self.head = head
        self._runs = {_key(run): run for run in runs}
        self._cut = not path.read_bytes().endswith(b"\n")

    @classmethod
    def create(cls, path: Path, form: Form, about: dict[str, Any]) -> Self:
        """A new record, over whatever the file held."""
        head = {"benchmark": "network", "form": asdict(form), **about}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(head) + "\n", encoding="utf-8")
        return cls(path, head, [])

    @classmethod
    def read(cls, path: Path) -> Self:
        """A record that exists. Raises `InvalidRequest` if the file is none.

        Lines that were cut off are left out: no other ends without its brace.
        """
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            head = json.loads(lines[0])
            if head.get("benchmark") != "network":
                raise ValueError("it has no head")
            runs = [json.loads(line) for line in lines[1:] if line.endswith("}")]
        except (OSError, ValueError, IndexError, AttributeError) as error:
            raise InvalidRequest(
                f"{path} is no record: {error}", remedy="make one with python -m bench.network"
            ) from error
        return cls(path, head, runs)

    @property
    def form(self) -> Form:
        """What was to be run."""
        form = self.head["form"]
        return Form(**form | {"cells": [Cell(**cell) for cell in form["cells"]]})

    @property
    def runs(self) -> list[dict[str, Any]]:
        """A line for each run."""
        return list(self._runs.values())

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, cell: Cell | None, setting: str, figures: dict[str, Any]) -> dict[str, Any]:
        """Add a run (without a cell: one that takes no network); returns its line."""
        run = {**(asdict(cell) if cell else {}), "setting": setting, **figures}
        self._runs[_key(run)] = run
        with self.path.open("a", encoding="utf-8") as file:
            file.write("\n" * self._cut + json.dumps(run, ensure_ascii=False) + "\n")
        self._cut = False
        return run

    def holds(self, cell: Cell | None, repetition: int, settings: Iterable[str]) -> bool:
        """Whether a repetition of a cell is there as a whole."""
        about = tuple(asdict(cell).values()) if cell else (None,) * 3
        return all((*about, repetition, setting) in self._runs for setting in settings)


def _key(run: dict[str, Any]) -> tuple[Any, ...]:
    names = ("network", "drafter", "temperature", "repetition", "setting")
    return tuple(run.get(name) for name in names)
