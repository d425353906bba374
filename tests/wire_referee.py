"""A referee at the client's end of a stream: what one side can see of the other keeps the rules.

A broken rule mostly costs a reconnection only, which a right text does not show.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from draftwire.errors import ProtocolError, RequestError
from draftwire.testing.memory import MemoryLink, MemoryTransport
from draftwire.types import ClientFrame, Draft, Open, Opened, ServerFrame, Verdict


class Referee:
    """One stream: the text after its history, drafts on the wire, and what was granted.

    It hears a verdict before the client does, so a draft may be stale already when it is sent.
    """

    def __init__(self, link: MemoryLink, faults: list[str]) -> None:
        self._link = link
        self._faults = faults
        self._history = 0
        self._text: list[int] = []
        self._sent: list[int] = []
        self._epoch, self._dead = 0, -1
        self._most = 0  # no token at or after this position has been asked for

    @property
    def _length(self) -> int:
        return self._history + len(self._text)

    async def send(self, frame: ClientFrame) -> None:
        if isinstance(frame, Open):
            self._history = len(frame.history)
        elif isinstance(frame, Draft) and frame.epoch > self._dead:
            self._draft(frame)
        await self._link.send(frame)

    async def receive(self) -> ServerFrame:
        try:
            frame = await self._link.receive()
        except (ProtocolError, RequestError) as error:
            self._faults.append(f"the verifier refused: {error!r}")
            raise
        if isinstance(frame, Opened):
            self._most = max(self._most, frame.length)
        elif isinstance(frame, Verdict):
            self._verdict(frame)
        return frame

    def _draft(self, frame: Draft) -> None:
        if frame.epoch > self._epoch:
            self._expect(not self._sent, "rule 10: sent drafts were given up", frame)
            self._epoch = frame.epoch
        tip = self._length + len(self._sent)
        self._expect(frame.base <= tip, f"rule 9: {tip} is the tip", frame)
        stale = max(0, self._length - frame.base)
        overlap = self._text[frame.base - self._history :][: len(frame.tokens)]
        if overlap != list(frame.tokens[: len(overlap)]):
            self._void()
            return
        self._most = max(self._most, frame.end + frame.credit)
        self._sent += frame.tokens[stale:]

    def _verdict(self, frame: Verdict) -> None:
        self._expect(frame.base == self._length, f"rule 19: {self._length} are committed", frame)
        self._expect(
            frame.accepted <= len(self._sent), f"rule 11: {len(self._sent)} were sent", frame
        )
        news = [*self._sent[: frame.accepted], *frame.next]
        self._expect(bool(news), "a pass commits at least one token", frame)
        for token in news:
            self._text.append(token)
            if self._sent and self._sent.pop(0) != token:
                self._void()
        self._expect(self._length <= self._most, f"rule 14: {self._most} were granted", frame)

    def _void(self) -> None:
        self._dead = self._epoch
        self._sent.clear()

    def _expect(self, kept: bool, rule: str, frame: object) -> None:
        if not kept:
            self._faults.append(f"{rule}, but then came {frame}")


class RefereedTransport(MemoryTransport):
    """A wire in memory whose streams are watched; `broken_rules` says what was seen."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.broken_rules: list[str] = []

    @contextlib.asynccontextmanager
    async def connect(self, *args: Any) -> AsyncIterator[Referee]:  # type: ignore[override]
        async with super().connect(*args) as link:
            yield Referee(link, self.broken_rules)
