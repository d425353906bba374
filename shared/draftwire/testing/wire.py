"""One direction of an emulated link: what is sent arrives later, in order, and not too fast.

Runs in callbacks of one event loop, without tasks. Knows no sockets: see `relay` for the ends.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from draftwire.errors import InvalidRequest

_SEGMENT_BYTES = 4096
# What may be under way beyond what the link holds by itself (bandwidth times delay).
_SPARE_BYTES = 1 << 20
# Stands in for the bandwidth of a profile without one in that product.
_UNLIMITED_MBIT_S = 1000.0
# Timers of epoll and poll end up to this late: wake that much earlier and poll until due…
_COARSE_S = 0.001
# …for at most this share of the time, so that a busy link does not take a core.
_POLL_SHARE = 0.2
_COARSE_SELECTORS = {"EpollSelector", "PollSelector", "DevpollSelector"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkProfile:
    """What a link is like: round trip, its variation (± `jitter_ms`) and bandwidth each way.

    `mbit_s` 0 is unlimited. Each direction takes half of the round trip and of the jitter.
    """

    rtt_ms: float = 0.0
    jitter_ms: float = 0.0
    mbit_s: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.jitter_ms <= self.rtt_ms and self.mbit_s >= 0):
            raise InvalidRequest("a link needs 0 ≤ jitter_ms ≤ rtt_ms and mbit_s ≥ 0")

    @property
    def capacity_bytes(self) -> int:
        """Bytes that one direction may hold before its sender is made to wait."""
        mbit_s = self.mbit_s or _UNLIMITED_MBIT_S
        return _SPARE_BYTES + round(mbit_s * 125 * self.rtt_ms / 2)


PROFILES: Mapping[str, LinkProfile] = MappingProxyType(
    {
        "lan": LinkProfile(rtt_ms=1),
        "wifi": LinkProfile(rtt_ms=8, jitter_ms=4, mbit_s=50),
        "5g": LinkProfile(rtt_ms=25, jitter_ms=10, mbit_s=50),
        "lte": LinkProfile(rtt_ms=60, jitter_ms=20, mbit_s=10),
        "far": LinkProfile(rtt_ms=150, jitter_ms=10),
        "satellite": LinkProfile(rtt_ms=600, jitter_ms=40, mbit_s=5),
    }
)
"""Links by name."""


def precise_loop() -> asyncio.SelectorEventLoop:
    """A loop whose timers are exact to some 0.1 ms: select(2) takes microseconds, epoll whole ms.

    The price is that it can't serve file descriptors above 1023.
    """
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


class Sender(Protocol):
    """Where bytes come from."""

    def hold(self, reason: object) -> None:
        """Stop reading for a reason; reasons add up."""
        ...

    def release(self, reason: object) -> None:
        """Read on if no other reason is left."""
        ...


class Wire:
    """One direction of a link, shared by all its connections: first in, first out."""

    def __init__(self, profile: LinkProfile, seed: int) -> None:
        self.profile = profile
        self.carried_bytes = 0
        self.held_until = 0.0  # loop time
        self._loop = asyncio.get_running_loop()
        selector = getattr(self._loop, "_selector", None)
        self._coarse_s = _COARSE_S if type(selector).__name__ in _COARSE_SELECTORS else 0.0
        self._rng = random.Random(seed)  # noqa: S311 - jitter is no secret
        # (due time, what takes the bytes, the bytes)
        self._queue: deque[tuple[float, Callable[[bytes], object], bytes]] = deque()
        self._queued_bytes = 0
        self._waiting: set[Sender] = set()  # senders held until the queue drains
        self._busy_until = 0.0
        self._last_due = 0.0
        self._timer: asyncio.Handle | None = None
        self._poll_credit_s = 0.0
        self._polled_at = 0.0

    def send(self, data: bytes, deliver: Callable[[bytes], object], sender: Sender) -> None:
        """Take in bytes for `deliver`; hold the sender if the link is full."""
        # What takes long to transmit arrives bit by bit, not all at its end.
        segment = _SEGMENT_BYTES if self.profile.mbit_s else len(data)
        delay_s = self._delay_s()
        for start in range(0, len(data), segment):
            self._put(data[start : start + segment], deliver, delay_s)
        self.carried_bytes += len(data)
        self._queued_bytes += len(data)
        if self._queued_bytes > self.profile.capacity_bytes:
            self._waiting.add(sender)
            sender.hold(self)

    def signal(self, action: Callable[[], object]) -> None:
        """Do something at the far end, after all that was sent before."""
        self._put(b"", lambda _: action(), self._delay_s())

    def stall(self, until: float) -> None:
        """Deliver nothing before loop time `until`."""
        self.held_until = max(self.held_until, until)

    def clear(self) -> None:
        """Lose everything under way."""
        self._queue.clear()
        self._queued_bytes = 0
        self._waiting.clear()
        self._busy_until = self._last_due = 0.0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _delay_s(self) -> float:
        jitter_ms = self._rng.uniform(-1, 1) * self.profile.jitter_ms
        return (self.profile.rtt_ms + jitter_ms) / 2000

    def _put(self, data: bytes, deliver: Callable[[bytes], object], delay_s: float) -> None:
        now = self._loop.time()
        self._busy_until = max(self._busy_until, now)
        if self.profile.mbit_s:
            self._busy_until += len(data) / (self.profile.mbit_s * 125_000)
        self._last_due = max(self._last_due, self._busy_until + delay_s)
        self._queue.append((self._last_due, deliver, data))
        if self._timer is None:
            self._arm(now)

    def _deliver(self) -> None:
        """Hand over what is due, then wait for the next."""
        self._timer = None
        now = self._loop.time()
        if now >= self.held_until:
            while self._queue and self._queue[0][0] <= now:
                _, deliver, data = self._queue.popleft()
                self._queued_bytes -= len(data)
                deliver(data)
        if self._waiting and self._queued_bytes <= self.profile.capacity_bytes // 2:
            waiting, self._waiting = self._waiting, set()
            for sender in waiting:
                sender.release(self)
        if self._queue and self._timer is None:
            self._arm(now)

    def _arm(self, now: float) -> None:
        due = max(self._queue[0][0], self.held_until)
        if due - now > self._coarse_s:
            self._timer = self._loop.call_at(due - self._coarse_s, self._deliver)
        elif due > now and not self._may_poll(now):
            self._timer = self._loop.call_at(due, self._deliver)
        else:
            self._timer = self._loop.call_soon(self._deliver)

    def _may_poll(self, now: float) -> bool:
        """Whether polling may go on; it earns credit with time and spends it by the turn."""
        since = now - self._polled_at
        self._polled_at = now
        if since < _COARSE_S:  # taken as spent polling, whoever used it
            self._poll_credit_s -= since
        self._poll_credit_s = min(self._poll_credit_s + since * _POLL_SHARE, 5 * _COARSE_S)
        return self._poll_credit_s > 0
