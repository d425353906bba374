"""What a verifier process says of itself, and what the system says of it."""

from __future__ import annotations

import asyncio
import re
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import psutil  # type: ignore[import-untyped]

_SAMPLE = re.compile(r"^draftwire:(\w+)\{(.*)\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a process holds beside memory: asyncio tasks, threads of the system, descriptors."""

    tasks: int
    threads: int
    files: int

    @classmethod
    def now(cls) -> Held:
        """Of this process, in whose event loop it is called."""
        return cls(
            tasks=len(asyncio.all_tasks()),
            threads=len(list(Path("/proc/self/task").iterdir())),
            files=len(list(Path("/proc/self/fd").iterdir())),
        )

    def beyond(self, before: Held) -> dict[str, int]:
        """Of what there is more than there was, and how much more."""
        more = {
            "tasks": self.tasks - before.tasks,
            "threads": self.threads - before.threads,
            "files": self.files - before.files,
        }
        return {name: count for name, count in more.items() if count > 0}


def scrape(address: str) -> dict[str, float]:
    """Metrics at `http://ADDRESS/metrics`, by name and by `name{state}`; sums over other labels."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as response:
        text = response.read().decode()
    values: dict[str, float] = {}
    for name, labels, value in _SAMPLE.findall(text):
        state = re.search(r'state="(\w+)"', labels)
        key = f"{name}{{{state[1]}}}" if state else name
        values[key] = values.get(key, 0.0) + float(value)
    return values


@dataclass(slots=True)
class Memory:
    """Resident memory of a process over time: (seconds, bytes)."""

    samples: list[tuple[float, int]] = field(default_factory=list)

    async def watch(self, pid: int, every_s: float = 1.0) -> None:
        """Sample until cancelled."""
        process, started = psutil.Process(pid), time.monotonic()
        while True:
            self.samples.append((time.monotonic() - started, process.memory_info().rss))
            await asyncio.sleep(every_s)

    def spread(self, since_s: float, window_s: float = 20.0) -> float:
        """(Most − least) / least after that time; 0 where nothing was sampled.

        Of medians over windows: what a pass needs while it runs comes and goes.
        """
        windows: dict[int, list[int]] = {}
        for at, size in self.samples:
            if at >= since_s:
                windows.setdefault(int((at - since_s) / window_s), []).append(size)
        medians = [median(sizes) for sizes in windows.values()]
        return max(medians) / min(medians) - 1 if medians else 0.0
