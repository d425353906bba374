"""Lines about what is being done, on stderr."""

from __future__ import annotations

import sys
import time


class Progress:
    """Prints lines with the time; of those that count something, one every few seconds.

    A line counts what stands before its colon.
    """

    def __init__(self, every_s: float = 5.0) -> None:
        self._every_s = every_s
        self._last: dict[str, float] = {}
        self._started = time.monotonic()

    def __call__(self, line: str) -> None:
        """Print a line, or leave it out."""
        kind, colon, _ = line.partition(":")
        now = time.monotonic()
        if colon and now - self._last.get(kind, 0) < self._every_s:
            return
        self._last[kind] = now
        print(f"[{now - self._started:5.0f} s] {line}", file=sys.stderr, flush=True)
