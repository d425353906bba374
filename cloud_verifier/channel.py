"""The two queues of a stream, and the account of the key that it is for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from cloud_verifier.pace import Pace, StreamBounds
from cloud_verifier.quotas import Account
from cloud_verifier.sessions import Session
from draftwire.errors import DraftwireError, QuotaExceeded, SlowReader
from draftwire.types import ClientFrame, Open, Opened, ServerFrame, Verdict

UNREAD_FRAMES = 64
"""Frames of one stream that may wait for the engine; its sender waits beyond."""


class Channel:
    """What waits for the engine and for the client. A None in `out` ends the stream.

    `longest` is how many frames may wait for the client.
    """

    def __init__(
        self,
        longest: int,
        bounds: StreamBounds,
        clock: Callable[[], float],
        account: Account | None = None,
    ) -> None:
        self.out: asyncio.Queue[ServerFrame | DraftwireError | None] = asyncio.Queue()
        self.engines: DraftwireError | None = None  # the engine's word on why the stream ended
        self._longest = longest
        self._slots = asyncio.Semaphore(UNREAD_FRAMES)
        self._pace = Pace(bounds.frames_at_once, bounds.frames_per_s, clock())
        self._per_verdict = bounds.frames_per_verdict
        self._verdict = asyncio.Event()
        self._clock = clock
        self._account = account
        self._counted: bytes | None = None  # the session that the account counts for this stream

    # ------------------------------------------------------------------ from the client

    async def turn(self) -> None:
        """Wait until another frame may go to the engine."""
        await self._slots.acquire()
        while (wait_s := self._pace.wait_s(self._clock())) > 0:
            self._verdict.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._verdict.wait()
        self._pace.take()

    def taken(self) -> None:
        """The engine has taken a frame."""
        self._slots.release()

    def admit(self, frame: ClientFrame) -> None:
        """Count an open against the key's quota. Raises `QuotaExceeded`."""
        if not isinstance(frame, Open) or self._account is None or self._counted is not None:
            return
        try:
            self._account.open(frame.session_id, self._clock())
        except QuotaExceeded as error:
            error.session_id = frame.session_id.hex()
            raise
        self._counted = frame.session_id

    # ------------------------------------------------------------------ to the client

    def put(self, item: ServerFrame | DraftwireError | None) -> bool:
        """Queue something for the client; False if it has fallen too far behind."""
        if isinstance(item, Verdict):
            self._pace.allow(self._per_verdict)
            self._verdict.set()
        if self.out.qsize() < self._longest:
            self.out.put_nowait(item)
            return True
        while not self.out.empty():
            self.out.get_nowait()
        self.out.put_nowait(
            SlowReader(
                f"{self._longest} verdicts were not read",
                remedy="open the session again and read on; nothing is lost",
            )
        )
        return False

    def charge(self, item: ServerFrame | DraftwireError, session: Session | None) -> None:
        """Count what a frame for the client took, and hold its session to what is left.

        For use between passes.
        """
        if self._account is None or session is None:
            return
        if isinstance(item, Opened):
            tokens = max(0, item.length - item.cached)
        elif isinstance(item, Verdict) and item.timing.pass_rows:  # else a replay
            tokens = item.accepted + len(item.next)
        else:
            return
        wasted, session.wasted = session.wasted, 0
        now = self._clock()
        self._account.used(tokens, wasted, now)
        session.allowance.withheld = not self._account.may_waste(now)

    @property
    def may_waste(self) -> bool:
        """Whether drafts are still to be judged for the key."""
        return self._account is None or self._account.may_waste(self._clock())

    def check_quota(self) -> None:
        """Raise `QuotaExceeded` if the key has no tokens left for now."""
        if self._account is not None:
            self._account.check_tokens(self._clock())

    def close(self) -> None:
        """The stream has ended."""
        if self._account is not None and self._counted is not None:
            self._account.close(self._counted)
