"""Listens to the wire, to tell which sessions shared a pass of the target."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from draftwire.types import ClientFrame, ModelCard, Open, ServerFrame, Timing, Verdict
from edge_client.transport import Link, Transport, WireBytes


@dataclass(slots=True)
class Pass:
    """A pass of the target: its timing, the sessions that were in it, and when they heard."""

    timing: Timing
    sessions: set[bytes] = field(default_factory=set)
    heard_at: float = 0.0


class Tap:
    """A transport that passes everything on; notes what was opened and the target's passes.

    Verdicts of one pass carry the same times (µs) and rows, and arrive together.
    """

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self._recent: dict[Timing, Pass] = {}
        self.passes: list[Pass] = []
        self.opens: list[Open] = []

    async def describe(self) -> ModelCard:
        """What the verifier serves."""
        return await self._inner.describe()

    @contextlib.asynccontextmanager
    async def connect(self, count: WireBytes) -> AsyncIterator[Link]:
        """A new stream, listened to."""
        async with self._inner.connect(count) as link:
            yield _TapLink(link, self)

    async def close(self) -> None:
        """Close the connection."""
        await self._inner.close()

    def hear(self, session: bytes, timing: Timing) -> None:
        """A verdict came for a session."""
        key = Timing(pass_us=timing.pass_us, pass_rows=timing.pass_rows)
        now = time.monotonic()
        known = self._recent.get(key)
        if known is None or session in known.sessions or now - known.heard_at > 1:
            known = self._recent[key] = Pass(key)
            self.passes.append(known)
        known.sessions.add(session)
        known.heard_at = now

    @property
    def sessions_per_pass(self) -> float:
        """Mean number of sessions in a pass."""
        return sum(len(p.sessions) for p in self.passes) / max(1, len(self.passes))


class _TapLink:
    def __init__(self, inner: Link, tap: Tap) -> None:
        self._inner = inner
        self._tap = tap
        self._session = b""

    async def send(self, frame: ClientFrame) -> None:
        if isinstance(frame, Open):
            self._session = frame.session_id
            self._tap.opens.append(frame)
        await self._inner.send(frame)

    async def receive(self) -> ServerFrame:
        frame = await self._inner.receive()
        if isinstance(frame, Verdict) and frame.timing.pass_rows:
            self._tap.hear(self._session, frame.timing)
        return frame
