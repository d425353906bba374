"""What a verifier process says of itself, and what the system says of it."""

from __future__ import annotations

import asyncio
import re
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import grpc.aio
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


async def held_by_nobody() -> Held:
    """What this process holds before it is a client, but for what gRPC makes once for all."""
    async with grpc.aio.insecure_channel("127.0.0.1:1"):
        pass
    return Held.now()


async def left_beyond(before: Held, *, within_s: float = 5.0) -> dict[str, int]:
    """Of what there is more than before when that time is over; gRPC's threads take a moment."""
    deadline = time.monotonic() + within_s
    while (more := Held.now().beyond(before)) and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    return more


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
class Vitals:
    """Resident memory and open descriptors of a process over time: (seconds, bytes, count)."""

    samples: list[tuple[float, int, int]] = field(default_factory=list)

    async def watch(self, pid: int, every_s: float = 1.0) -> None:
        """Sample until cancelled."""
        process, started = psutil.Process(pid), time.monotonic()
        while True:
            at = time.monotonic() - started
            self.samples.append((at, process.memory_info().rss, process.num_fds()))
            await asyncio.sleep(every_s)

    def memory_spread(self, since_s: float, until_s: float) -> float:
        """(Most − least) / least between those times; 0 where nothing was sampled."""
        medians = self._medians(since_s, until_s, 1)
        return max(medians) / min(medians) - 1 if medians else 0.0

    def files_spread(self, since_s: float, until_s: float) -> float:
        """Most − least between those times; 0 where nothing was sampled."""
        medians = self._medians(since_s, until_s, 2)
        return max(medians) - min(medians) if medians else 0.0

    def _medians(self, since_s: float, until_s: float, which: int) -> list[float]:
        """Of up to five windows of 20 s: what a pass needs while it runs comes and goes."""
        count = max(1, min(5, int((until_s - since_s) / 20.0)))
        windows: list[list[int]] = [[] for _ in range(count)]
        for sample in self.samples:
            at = int((sample[0] - since_s) / (until_s - since_s) * count)
            if since_s <= sample[0] and at < count:
                windows[at].append(int(sample[which]))
        return [median(values) for values in windows if values]
