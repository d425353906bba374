"""Says what is being done while it takes long."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeAlias

Report: TypeAlias = Callable[[str], None]
"""Is told, in words, what is being done."""

EVERY_S = 5.0


@contextlib.contextmanager
def step(
    report: Report,
    message: str,
    *,
    reached: Callable[[], str] | None = None,
    every_s: float = EVERY_S,
) -> Iterator[None]:
    """Report `message` now, and every `every_s` seconds that it still goes on.

    `reached` says how far it has come, in words; it and `report` are called from a thread of its
    own meanwhile.
    """
    report(message)
    started = time.monotonic()
    done = threading.Event()

    def remind() -> None:
        while not done.wait(every_s):
            words = f"{reached()}, " if reached is not None else ""
            report(f"{message}: {words}{time.monotonic() - started:.0f} s so far")

    thread = threading.Thread(target=remind, name="draftwire-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def megabytes(size_bytes: float) -> str:
    """A size in words, MB or GB."""
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:.1f} MB"
