"""A link in memory with the profile of an emulated one: delay, jitter, bandwidth and stalls."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from draftwire import codec
from draftwire.errors import DraftwireError, LinkLost
from draftwire.testing.memory import Decode
from draftwire.testing.wire import LinkProfile, Wire
from draftwire.types import ClientFrame, ModelCard, ServerFrame


class ProfiledLink:
    """One stream over two wires, in the shape of a client's link. Frames stay below 4 KiB."""

    def __init__(self, decode: Decode, up: Wire, down: Wire) -> None:
        self._up, self._down = up, down
        self._to_verifier: asyncio.Queue[bytes] = asyncio.Queue()  # empty bytes end it
        self._to_client: asyncio.Queue[bytes | DraftwireError] = asyncio.Queue()
        self._server = asyncio.create_task(self._serve(decode))

    async def send(self, frame: ClientFrame) -> None:
        """Send a frame."""
        self._up.send(codec.pack_client(frame), self._to_verifier.put_nowait, self)

    async def receive(self) -> ServerFrame:
        """The next frame. Raises what the verifier raised, or `LinkLost`."""
        item = await self._to_client.get()
        if isinstance(item, bytes):
            return codec.unpack_server(item)
        raise item

    async def close(self) -> None:
        """Leave; the verifier hears of it in time."""
        self._up.signal(lambda: self._to_verifier.put_nowait(b""))

    async def stop(self) -> None:
        """End the verifier's side at once."""
        self._server.cancel()
        await asyncio.wait([self._server])

    def hold(self, reason: object) -> None:
        """Frames are few: the wire never fills."""

    def release(self, reason: object) -> None:
        """See `hold`."""

    async def _frames(self) -> AsyncIterator[ClientFrame]:
        while item := await self._to_verifier.get():
            yield codec.unpack_client(item)

    async def _serve(self, decode: Decode) -> None:
        last: DraftwireError = LinkLost("the verifier ended the stream")
        try:
            async with contextlib.aclosing(decode(self._frames())) as frames:
                async for frame in frames:
                    self._down.send(codec.pack_server(frame), self._to_client.put_nowait, self)
        except DraftwireError as error:
            last = error
        self._down.signal(lambda: self._to_client.put_nowait(last))


class ProfiledTransport:
    """Connects to `decode` over a link whose profile may change, and which may stall."""

    def __init__(self, decode: Decode, card: ModelCard, profile: LinkProfile, seed: int) -> None:
        self._decode = decode
        self._card = card
        self._profile = profile
        self._seed = seed
        self._wires: tuple[Wire, Wire] | None = None
        self._links: list[ProfiledLink] = []

    async def describe(self) -> ModelCard:
        """The card it was made with."""
        return self._card

    @contextlib.asynccontextmanager
    async def connect(self, count: object = None) -> AsyncIterator[ProfiledLink]:  # noqa: ARG002
        """A new link; its payload is not counted."""
        if self._wires is None:
            self._wires = Wire(self._profile, self._seed), Wire(self._profile, self._seed + 1)
        link = ProfiledLink(self._decode, *self._wires)
        self._links.append(link)
        try:
            yield link
        finally:
            await link.close()

    def set_profile(self, profile: LinkProfile) -> None:
        """The link is like this from now on."""
        self._profile = profile
        for wire in self._wires or ():
            wire.profile = profile

    def stall(self, seconds: float) -> None:
        """Deliver nothing for that long."""
        until = asyncio.get_running_loop().time() + seconds
        for wire in self._wires or ():
            wire.stall(until)

    async def close(self) -> None:
        """End the verifier's side of all links."""
        for link in self._links:
            await link.stop()
        self._links.clear()
