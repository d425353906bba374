"""Several verifiers in the order of preference: when one fails, the next is used."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence

from draftwire.addresses import stays_here
from draftwire.credentials import Credentials
from draftwire.errors import (
    DraftwireError,
    Draining,
    InvalidRequest,
    LinkLost,
    ServerFull,
    Unavailable,
)
from draftwire.types import ClientFrame, ModelCard, ServerFrame
from edge_client.transport import GrpcTransport, Link, Transport, WireBytes


def transport_to(addresses: str, credentials: Credentials | None = None) -> Transport:
    """A transport to `HOST:PORT`, or to several, separated by commas, that fails over in order.

    Raises `InvalidRequest` for an address that is none.
    """
    transports = [GrpcTransport(one, credentials) for one in _each(addresses)]
    return transports[0] if len(transports) == 1 else FailoverTransport(transports)


def runs_here(addresses: str) -> bool:
    """Whether any of these verifiers is on this machine.

    Raises `InvalidRequest` for an address that is none, unless one before it is.
    """
    return any(map(stays_here, _each(addresses)))


def _each(addresses: str) -> list[str]:
    return [one.strip() for one in addresses.split(",")]


class FailoverTransport:
    """Opens streams to the first of several verifiers that works.

    One that breaks a stream, can't be reached, is shutting down or full is left alone for
    `retry_after_s` seconds, then asked for its model card before it is used again. A session that
    comes to another verifier is opened there with its whole history. Raises `InvalidRequest` for
    no transports.
    """

    def __init__(
        self,
        transports: Sequence[Transport],
        *,
        retry_after_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not transports:
            raise InvalidRequest("there is no verifier to use", remedy="give one address at least")
        self._transports = tuple(transports)
        self._retry_after_s = retry_after_s
        self._clock = clock
        self._failed_at: dict[Transport, float] = {}

    async def describe(self) -> ModelCard:
        """What the first verifier that answers serves. Raises the last one's error if none does."""
        for transport in self._transports[:-1]:
            if (card := await self._asked(transport)) is not None:
                return card
        return await self._transports[-1].describe()

    @contextlib.asynccontextmanager
    async def connect(self, count: WireBytes) -> AsyncIterator[Link]:
        """A new stream to the first verifier that works."""
        transport = await self._working()
        async with transport.connect(count) as link:
            yield _WatchedLink(link, lambda error: self._failed(transport, error))

    async def close(self) -> None:
        """Close all connections."""
        for transport in self._transports:
            await transport.close()

    async def _working(self) -> Transport:
        for transport in self._transports:
            failed_at = self._failed_at.get(transport)
            if failed_at is None:
                return transport
            late = self._clock() >= failed_at + self._retry_after_s
            if late and await self._asked(transport) is not None:
                return transport
        # None is known to work, or one has come to be while others were asked.
        return min(self._transports, key=lambda one: self._failed_at.get(one, -math.inf))

    async def _asked(self, transport: Transport) -> ModelCard | None:
        try:
            card = await transport.describe()
        except Unavailable as error:
            self._heard(transport, error)
            return None
        self._failed_at.pop(transport, None)
        return card

    def _failed(self, transport: Transport, error: DraftwireError) -> DraftwireError:
        """The error to raise for one that ended a stream.

        One verifier that is shutting down or full refuses a new generation; of several the next
        may have it. Where all are full, that is said at once.
        """
        self._heard(transport, error)
        left = len(self._transports) - len(self._failed_at)
        if (isinstance(error, Draining) and len(self._transports) > 1) or (
            isinstance(error, ServerFull) and left
        ):
            return Unavailable(error.message, remedy=error.remedy, session_id=error.session_id)
        return error

    def _heard(self, transport: Transport, error: DraftwireError) -> None:
        if type(error) in (
            LinkLost,
            Draining,
            ServerFull,
            Unavailable,
        ):  # of the others, it may well be ours
            self._failed_at[transport] = self._clock()


class _WatchedLink:
    """A link that raises what `failed` makes of its errors."""

    def __init__(self, link: Link, failed: Callable[[DraftwireError], DraftwireError]) -> None:
        self._link = link
        self._failed = failed

    async def send(self, frame: ClientFrame) -> None:
        await self._link.send(frame)

    async def receive(self) -> ServerFrame:
        try:
            return await self._link.receive()
        except DraftwireError as error:
            failure = self._failed(error)
            if failure is error:
                raise
            raise failure from error
