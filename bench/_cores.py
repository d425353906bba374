"""Which cores are measured on, and how much of them others took."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import psutil  # type: ignore[import-untyped]


def sides() -> tuple[list[int], list[int]]:
    """A core for the device and one for the cloud; none where they can't be told apart."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return (cores[:1], cores[-1:]) if len(cores) > 1 else ([], [])


class Others:
    """What others take of cores on which known processes are pinned."""

    def __init__(self, pinned: Mapping[int, Sequence[int]]) -> None:
        """`pinned` says which process ids run on each core."""
        self._pinned = pinned
        self._start = self._now()

    def shares(self) -> list[float]:
        """The share of each core since the beginning, in [0, 1], in the order of the cores."""
        return [
            round(min(1.0, max(0.0, (busy - busy0) - (own - own0)) / max(all_ - all0, 1e-9)), 3)
            for (all_, busy, own), (all0, busy0, own0) in zip(self._now(), self._start, strict=True)
        ]

    def _now(self) -> list[tuple[float, float, float]]:
        """Seconds in all, busy ones, and those of the known processes, of each core."""
        cores, times = psutil.cpu_times(percpu=True), []
        for core, processes in self._pinned.items():
            total = sum(cores[core][:8])  # the guests' times, which follow, are the users' too
            idle = cores[core].idle + getattr(cores[core], "iowait", 0.0)
            own = (psutil.Process(process).cpu_times() for process in processes)
            times.append((total, total - idle, sum(one.user + one.system for one in own)))
        return times
