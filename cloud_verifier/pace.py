"""How fast a stream's frames are taken, and how long it may put off its first."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamBounds:
    """Bounds on streams that cost the verifier something and bring nothing.

    A stream must open a session within `open_within_s` seconds; beyond `max_unopened` of those
    that have not, the oldest is ended. A stream may send `frames_at_once` frames, then
    `frames_per_s` and `frames_per_verdict` more for each verdict; more than that waits unread.

    A device sends a frame or a few for each verdict. One whose frames bring no verdicts, because
    they are stale or repeat themselves, would have the verifier do nothing but read them.
    """

    open_within_s: float = 10.0
    max_unopened: int = 256
    frames_at_once: int = 64
    frames_per_s: float = 20.0
    frames_per_verdict: int = 32


class Pace:
    """Frames that one stream may still send. Times are seconds, passed in."""

    __slots__ = ("_at", "_bounds", "_left")

    def __init__(self, bounds: StreamBounds, now: float) -> None:
        self._bounds = bounds
        self._left = float(bounds.frames_at_once)
        self._at = now

    def wait_s(self, now: float) -> float:
        """Seconds until another frame may be taken; 0 if one may be."""
        self._add((now - self._at) * self._bounds.frames_per_s)
        self._at = now
        missing = 1 - self._left
        # What is missing by rounding only would be waited for in steps too small for a clock.
        return missing / self._bounds.frames_per_s if missing > 1e-6 else 0.0

    def take(self) -> None:
        """Count a frame."""
        self._left -= 1

    def verdict(self) -> None:
        """A verdict went out: its device has something to answer."""
        self._add(self._bounds.frames_per_verdict)

    def _add(self, frames: float) -> None:
        self._left = min(self._bounds.frames_at_once, self._left + frames)
