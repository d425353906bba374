"""How fast things are taken from a peer: frames of a stream, calls of a connection."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

MOST_PEERS = 4096
"""Connections whose pace is remembered."""


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
    max_unopened: int = 1024
    frames_at_once: int = 64
    frames_per_s: float = 20.0
    frames_per_verdict: int = 32


class Pace:
    """Lets some through at once, then so many a second. Times are seconds, passed in."""

    __slots__ = ("_at", "_at_once", "_left", "_per_s")

    def __init__(self, at_once: int, per_s: float, now: float) -> None:
        self._at_once = at_once
        self._per_s = per_s
        self._left = float(at_once)
        self._at = now

    def wait_s(self, now: float) -> float:
        """Seconds until another may pass; 0 if one may."""
        self.allow((now - self._at) * self._per_s)
        self._at = now
        missing = 1 - self._left
        # What is missing by rounding only would be waited for in steps too small for a clock.
        return missing / self._per_s if missing > 1e-6 else 0.0

    def take(self) -> None:
        """One passes. If it need not have, those after it wait the longer."""
        self._left -= 1

    def allow(self, more: float) -> None:
        """Let more through, up to as many as at first."""
        self._left = min(self._at_once, self._left + more)


class PeerPace:
    """Holds every connection to a pace of its own, so that none is slowed by another's haste.

    `connected` is called for each that makes its first call.
    """

    def __init__(
        self,
        at_once: int,
        per_s: float,
        clock: Callable[[], float],
        connected: Callable[[], None] = lambda: None,
    ) -> None:
        self._at_once = at_once
        self._per_s = per_s
        self._clock = clock
        self._connected = connected
        self._peers: OrderedDict[str, Pace] = OrderedDict()  # longest without a call first

    async def turn(self, peer: str) -> None:
        """Wait until this peer may make another call."""
        now = self._clock()
        pace = self._peers.get(peer)
        if pace is None:
            pace = self._peers[peer] = Pace(self._at_once, self._per_s, now)
            self._connected()
            if len(self._peers) > MOST_PEERS:
                self._peers.popitem(last=False)
        self._peers.move_to_end(peer)
        wait_s = pace.wait_s(now)
        pace.take()  # before waiting: those that come meanwhile queue behind
        if wait_s > 0:
            await asyncio.sleep(wait_s)
