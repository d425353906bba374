"""Runs the long commands of set-up: visibly, one at a time, and so that they can be interrupted."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

HEARTBEAT_S = 10.0


class SetupError(Exception):
    """Set-up can't go on; the message says what to do."""


def run_logged(log_path: Path, command: Sequence[str]) -> None:
    """Runs a command with its output in a log file, saying every ten seconds how far it is."""
    started = time.monotonic()
    environment = os.environ | {
        "CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count() or 1),
        "PYTHONUNBUFFERED": "1",
    }
    with log_path.open("w") as log_file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
            start_new_session=True,  # one group to stop, compilers and all
        )
        assert process.stdout is not None
        progress = Progress(process.stdout, log_file)
        progress.start()
        try:
            while not finished_within(process, HEARTBEAT_S):
                say(f"  {elapsed(started):>5}  {progress.latest}")
        except KeyboardInterrupt:
            stop(process)
            raise
        finally:
            progress.join()
    if process.returncode != 0:
        tail = "\n".join(log_path.read_text().splitlines()[-25:])
        raise SetupError(
            f"This failed: {' '.join(command)}\n{tail}\nAll of its output is in {log_path}."
        )


class Progress(threading.Thread):
    """Copies a command's output to its log and keeps the latest line that tells how far it is."""

    def __init__(self, output: IO[str], log: IO[str]) -> None:
        super().__init__(daemon=True)
        self.latest = "starting"
        self._output = output
        self._log = log

    def run(self) -> None:
        for line in self._output:
            self._log.write(line)
            self._log.flush()
            self.latest = describe(line.strip()) or self.latest


def describe(line: str) -> str | None:
    """One line of pip's or the build's output in a few words, or None where it tells nothing."""
    counted = re.match(r"\[\s*(\d+/\d+|\d+%)\]", line)
    if counted:
        sources = re.findall(r"[\w-]+\.(?:cpp|c|m)\b", line)
        return f"compiled {counted[1]} {sources[-1] if sources else ''}"
    if line.startswith("Installing collected packages"):
        return f"unpacking {line.count(',') + 1} packages"
    if line.startswith(("Collecting", "Downloading", "Preparing", "Getting", "Building", "***")):
        return line if len(line) < 100 else f"{line[:97]}..."
    return None


def finished_within(process: subprocess.Popen[str], seconds: float) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    return process.returncode is not None


def stop(process: subprocess.Popen[str]) -> None:
    for number in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        if finished_within(process, 5.0):
            return


def succeeds(command: Sequence[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@contextlib.contextmanager
def locked(path: Path, holder: str) -> Iterator[None]:
    """One process at a time; the lock goes with its holder, however that ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"Waiting for {holder}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def say(text: str) -> None:
    print(text, flush=True)


def elapsed(started: float) -> str:
    minutes, seconds = divmod(int(time.monotonic() - started), 60)
    return f"{minutes}:{seconds:02}"
