"""A verifier process that dies, stops and comes back at one address."""

from __future__ import annotations

import json
import re
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from bench._vitals import Held, scrape
from draftwire.errors import ModelLoadFailed
from edge_client.verifier_process import VerifierProcess

LEFT = (
    *("num_requests_running", "num_requests_waiting", "sessions_idle"),
    *("kv_cache_blocks{held}", "kv_cache_blocks{cached}"),
)
_METRICS_ON = re.compile(r"metrics on http://(\S+)/metrics")


class _Counted(VerifierProcess):
    module = "bench._counted_verifier"


class Verifier:
    """`draftwire-verifier serve` with `arguments` and metrics, up while used as a context manager.

    `address` and `metrics` stay over restarts, of which `restarts` counts the lives begun.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self.metrics = self.address = "127.0.0.1:0"
        self.restarts = -1
        self._arguments = arguments

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory()
        self._counts = Path(self._folder.name) / "counts"
        try:
            self.start()
        except BaseException:
            self._folder.cleanup()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.stop()
        self._folder.cleanup()

    @property
    def pid(self) -> int:
        """Of the process there is now."""
        return self._process.process.pid

    def start(self) -> None:
        """Begin another life. Raises `ModelLoadFailed`."""
        addresses = ["--listen", self.address, "--metrics", self.metrics]
        counts = ["--counts", str(self._counts)]
        self._process = _Counted([*self._arguments, *addresses, *counts], progress=self._hear)
        self._process.__enter__()
        self.address = self._process.address
        self.restarts += 1

    def stop(self) -> int:
        """SIGTERM, and wait until it has gone; its exit status."""
        return self._process.stop()

    def kill(self) -> None:
        """SIGKILL, and wait until it has gone."""
        self._process.process.kill()
        self._process.stop()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.process.send_signal(number)

    def values(self) -> dict[str, float]:
        """Its metrics: see `scrape`."""
        return scrape(self.metrics)

    def held(self, timeout_s: float = 30.0) -> Held:
        """What it holds now. Raises `ModelLoadFailed` if it does not say."""
        self._counts.unlink(missing_ok=True)
        self.signal(signal.SIGUSR1)
        deadline = time.monotonic() + timeout_s
        while not self._counts.exists():
            if self._process.process.poll() is not None or time.monotonic() > deadline:
                raise ModelLoadFailed("the verifier does not say what it holds")
            time.sleep(0.01)
        return Held(**json.loads(self._counts.read_text(encoding="utf-8")))

    def held_at_rest(self) -> Held:
        """What it holds when that does not change any more: just started it is not yet so."""
        held = self.held()
        while True:
            time.sleep(0.2)
            before, held = held, self.held()
            if held == before:
                return held

    def left(self, *, within_s: float) -> dict[str, float]:
        """What of generations, sessions and KV is not gone when that time is over."""
        deadline = time.monotonic() + within_s
        while True:
            values = self.values()
            left = {name: values[name] for name in LEFT if values[name]}
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.05)

    def _hear(self, line: str) -> None:
        if found := _METRICS_ON.search(line):
            self.metrics = found[1]
