"""Referees at the client's end of a stream: what each side can see of the other keeps the rules.

A broken rule mostly costs a reconnection only, which a right text does not show.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from draftwire.errors import ProtocolError, RequestError, SessionGone
from draftwire.testing.memory import MemoryLink, MemoryTransport
from draftwire.testing.referee import Referee, RuleBroken
from draftwire.types import ClientFrame, Draft, Open, Opened, ServerFrame, Verdict


class RefereedLink:
    """One stream: the text after its history, drafts on the wire, and what was granted.

    It hears a verdict before the client does, so a draft may be stale already when it is sent.
    What the client does is for the session's `Referee` to judge, what the verifier does is judged
    here.
    """

    def __init__(self, link: MemoryLink, transport: RefereedTransport) -> None:
        self._link = link
        self._transport = transport
        self._faults = transport.broken_rules
        self._referee: Referee | None = None
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
            self._referee = self._transport.referee_of(frame, self)
        elif isinstance(frame, Draft) and frame.epoch > self._dead:
            self._draft(frame)
        if self._referee is not None:
            try:
                self._referee.sent(frame)
            except RuleBroken as broken:
                self._faults.append(f"{broken}, when {frame} was sent")
        await self._link.send(frame)

    async def receive(self) -> ServerFrame:
        try:
            frame = await self._link.receive()
        except (ProtocolError, RequestError) as error:
            self._faults.append(f"the verifier refused: {error!r}")
            raise
        except SessionGone:
            if self._referee is not None and self._transport.is_newest(self):
                self._referee.gone()
            raise
        if isinstance(frame, Opened):
            self._most = max(self._most, frame.length)
        elif isinstance(frame, Verdict):
            self._verdict(frame)
        if self._referee is not None and self._transport.is_newest(self):
            try:
                self._referee.told(frame)
            except ValueError as error:
                self._faults.append(str(error))
        return frame

    def _draft(self, frame: Draft) -> None:
        self._epoch = frame.epoch
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
        self._referees: dict[bytes, Referee] = {}
        self._newest: dict[Referee, RefereedLink] = {}

    def referee_of(self, opening: Open, link: RefereedLink) -> Referee:
        """The referee of a session, which from now on watches this link of it."""
        limits = self._card.limits
        referee = self._referees.setdefault(opening.session_id, Referee(limits))
        self._newest[referee] = link
        return referee

    def is_newest(self, link: RefereedLink) -> bool:
        return link in self._newest.values()

    @contextlib.asynccontextmanager
    async def connect(self, *args: Any) -> AsyncIterator[RefereedLink]:  # type: ignore[override]
        async with super().connect(*args) as link:
            yield RefereedLink(link, self)
