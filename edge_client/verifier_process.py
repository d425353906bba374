"""A verifier in a process of its own, for demos, benchmarks and tests."""

from __future__ import annotations

import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from types import TracebackType
from typing import IO, Self

from draftwire.errors import ModelLoadFailed

_READY = re.compile(r"^serving (?P<name>.*) on (?P<address>\S+:\d+) ")


class VerifierProcess:
    """Starts `draftwire-verifier serve` on a free port and stops it on leaving.

    If this process is killed, it stops too: the pipe that is its input ends.

    `arguments` are those of `serve`; `cores` are the processor cores it may use, if not all.
    `progress` is told what it logs while it starts. Raises `ModelLoadFailed` with its last words
    if it does not come up within `timeout_s`.
    """

    module = "cloud_verifier"

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        cores: Collection[int] = (),
        progress: Callable[[str], None] = lambda line: None,  # noqa: ARG005
        timeout_s: float = 600.0,
    ) -> None:
        self._arguments = arguments
        self._cores = cores
        self._progress = progress
        self._timeout_s = timeout_s
        self.address = ""

    def __enter__(self) -> Self:
        self._words: list[str] = []
        command = [sys.executable, "-m", self.module, "serve", "--until-stdin-ends"]
        command += ["--listen", "127.0.0.1:0"]
        environment = dict(os.environ)
        if self._cores:
            # Libraries count the processors when they load, before anyone could tell them.
            threads = str(len(self._cores))
            environment |= {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        self.process = subprocess.Popen(  # noqa: S603 (our own module)
            [*command, *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        try:
            if self._cores:
                os.sched_setaffinity(self.process.pid, self._cores)
            self._wait()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self, timeout_s: float = 20.0) -> int:
        """Ask it to stop, make it stop if it does not; returns its exit status."""
        self.process.terminate()
        try:
            return self.process.wait(timeout_s)
        except BaseException as error:  # an impatient second Ctrl-C too must leave nothing behind
            self.process.kill()
            status = self.process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                return status
            raise
        finally:
            for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
                if pipe is not None:
                    pipe.close()

    def _wait(self) -> None:
        lines: queue.Queue[str] = queue.Queue()
        ready = threading.Event()
        assert self.process.stdout is not None  # noqa: S101 (both are pipes)
        assert self.process.stderr is not None  # noqa: S101
        for pipe in (self.process.stdout, self.process.stderr):
            threading.Thread(target=_pump, args=(pipe, lines, ready), daemon=True).start()
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                line = lines.get(timeout=0.2)
            except queue.Empty:
                if self.process.poll() is None and time.monotonic() < deadline:
                    continue
                raise ModelLoadFailed(
                    "the verifier did not come up: " + "; ".join(self._words[-3:]),
                    remedy="run draftwire-verifier serve by hand to see more",
                ) from None
            self._words.append(line)
            if serving := _READY.match(line):
                self.address = serving["address"]
                ready.set()
                return
            self._progress(line)


def _pump(pipe: IO[str], lines: queue.Queue[str], ready: threading.Event) -> None:
    """Read a pipe to its end, so that the process is never held up by it.

    What comes once it is `ready` nobody asks for: it is dropped.
    """
    try:
        for line in pipe:
            if not ready.is_set():
                lines.put(line.rstrip())
    except ValueError:
        pass  # the pipe was closed while we read
