"""The runs of the benchmark over networks: what is started for them, and in which order they go."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from bench import _alone
from bench._cores import sides
from bench._device import Device
from bench._network_record import Record
from bench._network_run import Runner
from bench._network_stats import speed
from bench._prompts import PROMPTS, Prompt
from bench._relay import relaying
from bench._settings import PROMPT_NAMES, Q4, Cell
from cloud_verifier.auth import new_key
from edge_client.verifier_process import VerifierProcess

SERVE = ("--threads", "1", "--kv-tokens", "8192", "--max-sessions", "4", "--session-ttl", "20")
TEXTS = [prompt for name in PROMPT_NAMES for prompt in PROMPTS if prompt.name == name]
WARM_UP = next(prompt for prompt in PROMPTS if prompt.name == "story")
DRAFT_MODEL = "llama.cpp alone"
ALONE = (DRAFT_MODEL, *_alone.WAYS)
TRIES = 3
OWNERS = 500
"""Keys that runs take in turn: by the time one comes again, others have taken its KV."""


@contextlib.asynccontextmanager
async def serving(
    model: str, device_cores: Sequence[int], cloud_cores: Sequence[int]
) -> AsyncIterator[Runner]:
    """Verifier, link and device, ready. Leaves this process on the device's cores, if any."""
    if device_cores:
        os.sched_setaffinity(0, device_cores)
    with tempfile.TemporaryDirectory() as folder:
        made = [new_key(f"run-{number}") for number in range(OWNERS)]
        keys = Path(folder) / "keys"
        keys.write_text("\n".join(line for _, line in made) + "\n")
        arguments = ["--model", model, "--keys", str(keys), *SERVE]
        with VerifierProcess(arguments, cores=cloud_cores) as verifier:
            device = Device.of(model)
            async with relaying(verifier.address, device_cores) as relay:
                pinned = {core: [os.getpid(), relay.pid] for core in device_cores}
                pinned |= {core: [verifier.process.pid] for core in cloud_cores}
                try:
                    yield Runner(relay, device, itertools.cycle(key for key, _ in made), pinned)
                finally:
                    await device.close()


class Campaign:
    """Runs what a record does not hold yet, and adds it."""

    def __init__(
        self, runner: Runner, record: Record, cloud_cores: Sequence[int], most_others: float
    ) -> None:
        """Runs are repeated, within bounds, that lost more than `most_others` of a core."""
        self._runner = runner
        self._record = record
        self._form = record.form
        self._cloud_cores = cloud_cores
        self._most_others = most_others
        runs = self._form.repetitions * len(self._form.cells) * len(self._form.settings)
        self._repeats_left = runs // 4  # a busy machine must not double the time

    async def run(self) -> None:
        """All repetitions."""
        for repetition in range(self._form.repetitions):
            for cell, settings in self._form.order(repetition):
                if not self._record.holds(cell, repetition, settings):
                    await self._cell(cell, settings, repetition)
            if self._form.alone and not self._record.holds(None, repetition, ALONE):
                await self._alone(repetition)

    async def _cell(self, cell: Cell, settings: Sequence[str], repetition: int) -> None:
        await self._runner.warm_up(cell, settings, WARM_UP, self._form.tokens)
        for setting in settings:
            self._add(cell, setting, repetition, await self._quiet(cell, setting, repetition))

    async def _quiet(self, cell: Cell, setting: str, repetition: int) -> dict[str, Any]:
        """A run that others did not disturb, or of a few the least disturbed."""
        tried: list[dict[str, Any]] = []
        while True:
            figures = await self._runner.run(cell, setting, _text(repetition), self._form.tokens)
            tried.append(figures)
            quiet = max(figures["others"], default=0.0) <= self._most_others
            if quiet or len(tried) == TRIES or not self._repeats_left:
                break
            self._repeats_left -= 1
        best = min(tried, key=lambda figures: max(figures["others"], default=0.0))
        return best | {"tries": len(tried)}

    async def _alone(self, repetition: int) -> None:
        """What takes no network, once for each repetition; the verifier idles meanwhile."""
        prompt, tokens, model = _text(repetition), self._form.tokens, self._record.head["source"]
        figures = await self._runner.alone(Q4, prompt, tokens)
        self._add(None, DRAFT_MODEL, repetition, figures)
        ids = prompt.tokens(self._runner.device.tokenizer)
        for figures in await asyncio.to_thread(
            _alone.measure, model, [ids], tokens, self._cloud_cores
        ):
            self._add(None, figures.pop("setting"), repetition, figures)

    def _add(
        self, cell: Cell | None, setting: str, repetition: int, figures: dict[str, Any]
    ) -> None:
        about = {"repetition": repetition, "prompt": _text(repetition).name}
        line = self._record.add(cell, setting, about | figures)
        print(f"{len(self._record):>4}  {_told(cell, line)}", flush=True)


async def measure(record: Record, most_others: float) -> None:
    """Run what the record does not hold yet. Leaves this process on the device's core."""
    device_cores, cloud_cores = sides()
    async with serving(record.head["source"], device_cores, cloud_cores) as runner:
        await Campaign(runner, record, cloud_cores, most_others).run()


def _text(repetition: int) -> Prompt:
    return TEXTS[repetition % len(TEXTS)]


def _told(cell: Cell | None, line: dict[str, Any]) -> str:
    where = "no network" if cell is None else str(cell)
    others = max(line["others"], default=0.0)
    return f"{where:<28} {line['setting']:<22} {speed(line):6.2f} tokens/s, others {others:.0%}"
