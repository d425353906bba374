"""One generation as an app reads it."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from draftwire.errors import DraftwireError
from edge_client.reading import Reading
from edge_client.results import Delta, Summary
from edge_client.tentative import Shown


class AsyncStream:
    """A generation as it comes: iterate over its deltas; then `summary` tells how it went.

    A context manager too: leaving it ends the generation if it has not ended, and so does
    cancelling a task that reads it, or dropping it. While one task reads, another may `cancel()`,
    not `close()`.
    """

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    def __del__(self) -> None:
        self._reading.abandon()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        return await self._reading.next()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the generation if it has not ended."""
        await self._reading.close()

    def cancel(self) -> None:
        """End the generation; the iterator ends with what is committed by then."""
        self._reading.cancel()

    async def read(self) -> str:
        """The whole text, when it is there."""
        async for _ in self:
            pass
        return self.shown.final

    @property
    def shown(self) -> Shown:
        """What the deltas so far add up to, after an error too."""
        return self._reading.shown

    @property
    def summary(self) -> Summary:
        """How it went. Raises `InvalidRequest` before the end."""
        return self._reading.summary

    @property
    def lost(self) -> DraftwireError | None:
        """What the connection broke by, while it is made again and the text stands still."""
        return self._reading.lost
