"""Files that may change while the verifier runs: keys and certificates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

LOOK_EVERY_S = 1.0


class WatchedFiles:
    """Tells when one of some files was written or replaced; looks once a second at most."""

    def __init__(self, paths: Sequence[Path], clock: Callable[[], float]) -> None:
        self._paths = paths
        self._clock = clock
        self._looked_at = clock()
        self._seen = self._look()

    def changed(self) -> bool:
        """Whether one differs from what it was when this was last true, or at first."""
        now = self._clock()
        if now < self._looked_at + LOOK_EVERY_S:
            return False
        self._looked_at = now
        seen, self._seen = self._seen, self._look()
        return seen != self._seen

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [_state(path) for path in self._paths]


def _state(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
