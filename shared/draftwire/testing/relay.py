"""The ends of an emulated link: each relays what one socket reads to the other end's socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable

from draftwire.testing.wire import Wire

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # struct linger


class End(asyncio.Protocol):
    """One end of a relayed connection: what it reads goes over `wire` to its `peer`."""

    def __init__(
        self, wire: Wire, ends: set[End], opened: Callable[[End], object] | None = None
    ) -> None:
        """`ends` holds the end while its socket is open; `opened` is called when it is."""
        self.peer: End | None = None
        self._wire = wire
        self._ends = ends
        self._opened = opened
        self._transport: asyncio.Transport | None = None
        self._holds: set[object] = set()
        self._early: list[bytes] = []  # read before there was a peer
        self._read_all = False
        self._wrote_all = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Read nothing before there is a peer. (asyncio has set TCP_NODELAY.)

        Some releases of Python 3.11 and 3.12 begin to read all the same: what they read waits.
        """
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - narrows the type
        self._transport = transport
        self._ends.add(self)
        self.hold(None)
        if self._opened is not None:
            self._opened(self)

    def join(self, peer: End) -> None:
        """Connect with the other end and start to read."""
        self.peer, peer.peer = peer, self
        for end in (self, peer):
            early, end._early = end._early, []
            for data in early:
                end.data_received(data)
            if end._read_all:
                end.eof_received()
            end.release(None)

    def data_received(self, data: bytes) -> None:
        """Send on what was read."""
        if self.peer is not None:
            self._wire.send(data, self.peer.write, self)
        else:
            self._early.append(data)

    def eof_received(self) -> bool:
        """Pass a half-close on; the other direction stays open until it ends too."""
        self._read_all = True
        if self.peer is not None:
            self._wire.signal(self.peer.write_eof)
        return not self._wrote_all

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass a break on. A connection that ended both ways has told its peer already."""
        self._ends.discard(self)
        self._transport = None
        if self.peer is not None and not (exc is None and self._read_all):
            self._wire.signal(self.peer.abort)

    def pause_writing(self) -> None:
        """The receiver is slow: let the sender wait."""
        if self.peer is not None:
            self.peer.hold(self)

    def resume_writing(self) -> None:
        """The receiver has caught up."""
        if self.peer is not None:
            self.peer.release(self)

    def write(self, data: bytes) -> None:
        """Hand bytes to the socket."""
        if self._transport is not None and not (self._wrote_all or self._transport.is_closing()):
            self._transport.write(data)

    def write_eof(self) -> None:
        """Half-close, or close if the other direction has ended."""
        self._wrote_all = True
        if self._transport is not None:
            if self._read_all:
                self._transport.close()
            else:
                with contextlib.suppress(OSError):  # reset meanwhile: reading will tell
                    self._transport.write_eof()

    def abort(self) -> None:
        """Break the connection now; the socket's peer sees a reset."""
        if self._transport is not None:
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self._transport.abort()

    def hold(self, reason: object) -> None:
        """Stop reading for a reason; reasons add up."""
        if not self._holds and self._transport is not None:
            self._transport.pause_reading()
        self._holds.add(reason)

    def release(self, reason: object) -> None:
        """Read on if no other reason is left."""
        if reason in self._holds:
            self._holds.discard(reason)
            if not self._holds and self._transport is not None:
                self._transport.resume_reading()
