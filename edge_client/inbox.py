"""What a generation hears, in the order in which it came."""

from __future__ import annotations

import asyncio
import logging
from typing import TypeAlias

from draftwire.errors import DraftwireError, ProtocolViolation
from draftwire.types import Cancel, ServerFrame
from edge_client.drafting import Drafted, Late
from edge_client.transport import Link

logger = logging.getLogger(__name__)

_MOST_UNREAD = 1024
"""Events that may wait for an app that reads slowly; a verifier has fewer to say within limits."""

Event: TypeAlias = ServerFrame | DraftwireError | Drafted | Late | Cancel


class Inbox:
    """The verifier's frames and how its stream broke, the drafter's answers, the app's cancel."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[Event] = asyncio.Queue()

    def post(self, event: Event) -> None:
        """Put in an event."""
        self._events.put_nowait(event)

    async def next(self, patience_s: float | None = None) -> Event:
        """The next event. Raises `TimeoutError` if none comes for so long; None: for ever."""
        async with asyncio.timeout(patience_s):
            return await self._events.get()

    def reading(self, link: Link) -> asyncio.Task[None]:
        """A task that puts in what comes from a stream, to be cancelled when that has ended."""
        return asyncio.create_task(_receive(link, self._events))

    def left_behind(self) -> list[Drafted]:
        """The drafter's answers that came meanwhile, after a stream or between two.

        What else a stream had to say is ignored when it has ended (rule 8); a cancel stays.
        """
        left, self._events = self._events, asyncio.Queue()
        answers = []
        while not left.empty():
            match left.get_nowait():
                case Drafted() as drafted:
                    answers.append(drafted)
                case Cancel() as cancel:
                    self.post(cancel)
        return answers


async def _receive(link: Link, events: asyncio.Queue[Event]) -> None:
    try:
        while True:
            events.put_nowait(await link.receive())
            while events.qsize() >= _MOST_UNREAD:  # noqa: ASYNC110 (it should never be)
                await asyncio.sleep(0.01)
    except DraftwireError as error:
        events.put_nowait(error)
    except Exception as error:  # whatever a transport raises, the generation must not hang
        logger.exception("the stream can't be read")
        events.put_nowait(ProtocolViolation(f"the stream can't be read: {error!r}"))
