"""A wire in memory: real sessions and a real service, without sockets and on any clock.

`MemoryTransport` has the shape of a client's transport and speaks to a service's `decode`
directly, each frame through the codec. Links can delay, jitter and be cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from typing import TypeAlias

from draftwire import codec
from draftwire.errors import DraftwireError, LinkLost
from draftwire.types import ClientFrame, ModelCard, ServerFrame

Decode: TypeAlias = Callable[[AsyncIterator[ClientFrame]], AsyncGenerator[ServerFrame]]

_NEVER = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFaults:
    """Delays of a link, one way, and how often it is cut: seconds and probabilities.

    A cut link loses what is under way, sometimes later in one direction than in the other; the
    client notices, the verifier only sometimes. A link that straggles is given up by the client
    while all it sends is still on its way, for up to `late_s`.
    """

    delay_s: float = 0.0
    jitter_s: float = 0.0
    cut_probability: float = 0.0
    cut_after_s: float = 0.1
    noticed_within_s: float = 0.02
    straggle_probability: float = 0.0
    late_s: float = 0.2


class _Direction:
    """Frames in order, each due after delay and jitter; those due after the death are lost."""

    def __init__(self, faults: MemoryFaults, rng: random.Random, late_s: float = 0.0) -> None:
        self._delay_s = faults.delay_s + late_s
        self._jitter_s = faults.jitter_s
        self._rng = rng
        self._loop = asyncio.get_running_loop()
        self._last = 0.0
        self.dead_at = _NEVER
        self.queue: asyncio.Queue[bytes | DraftwireError | None] = asyncio.Queue()

    def put(self, item: bytes | DraftwireError | None) -> None:
        jitter = self._rng.random() * self._jitter_s
        self._last = max(self._last, self._loop.time() + self._delay_s + jitter)
        if self._last <= self.dead_at:
            self._loop.call_at(self._last, self._deliver, item)

    def _deliver(self, item: bytes | DraftwireError | None) -> None:
        if self._loop.time() <= self.dead_at:
            self.queue.put_nowait(item)


class MemoryLink:
    """One stream in memory, in the shape of a client's link."""

    def __init__(self, decode: Decode, faults: MemoryFaults, rng: random.Random) -> None:
        straggles = rng.random() < faults.straggle_probability
        self._up = _Direction(faults, rng, rng.random() * faults.late_s if straggles else 0.0)
        self._down = _Direction(faults, rng)
        self._faults = faults
        self._rng = rng
        self._server = asyncio.create_task(self._serve(decode))
        self._cut_timer: asyncio.TimerHandle | None = None
        if straggles:
            asyncio.get_running_loop().call_later(
                rng.random() * faults.noticed_within_s, self._give_up
            )
        elif rng.random() < faults.cut_probability:
            self._cut_timer = asyncio.get_running_loop().call_later(
                rng.expovariate(1 / faults.cut_after_s), self.cut
            )

    async def send(self, frame: ClientFrame) -> None:
        """Send a frame; on a dead link it is lost without a word, as on a real one."""
        self._up.put(codec.pack_client(frame))

    async def receive(self) -> ServerFrame:
        """The next frame. Raises what the verifier raised, or `LinkLost`."""
        item = await self._down.queue.get()
        if isinstance(item, bytes):
            return codec.unpack_server(item)
        raise item or LinkLost("the verifier ended the stream")

    def cut(self) -> None:
        """Break the link: nothing more arrives, and the client notices after a while."""
        loop, rng = asyncio.get_running_loop(), self._rng
        now, within = loop.time(), self._faults.noticed_within_s
        self._up.dead_at = min(self._up.dead_at, now + rng.choice((0.0, rng.random() * 2 * within)))
        self._down.dead_at = min(self._down.dead_at, now + rng.choice((0.0, rng.random() * within)))
        lost = LinkLost("the link was cut")
        loop.call_later(rng.random() * within, self._down.queue.put_nowait, lost)
        if rng.random() < 0.6:
            loop.call_later(rng.random() * 3 * within, self._up.queue.put_nowait, lost)

    def _give_up(self) -> None:
        """The client thinks that the link is dead, while the verifier hears it yet."""
        self._down.dead_at = asyncio.get_running_loop().time()
        self._down.queue.put_nowait(LinkLost("the link was given up"))

    async def close(self) -> None:
        """The client leaves. A verifier that can still hear it learns so after the delay."""
        if self._cut_timer is not None:
            self._cut_timer.cancel()
        if self._up.dead_at == _NEVER:
            self._up.put(None)

    async def stop(self) -> None:
        """End the verifier's side at once, as the end of its process does."""
        self._server.cancel()
        await asyncio.wait([self._server])

    async def _frames(self) -> AsyncIterator[ClientFrame]:
        while (item := await self._up.queue.get()) is not None:
            if isinstance(item, DraftwireError):
                return
            yield codec.unpack_client(item)

    async def _serve(self, decode: Decode) -> None:
        try:
            async with contextlib.aclosing(decode(self._frames())) as frames:
                async for frame in frames:
                    self._down.put(codec.pack_server(frame))
            self._down.put(None)
        except DraftwireError as error:
            self._down.put(error)


class MemoryTransport:
    """Connects to whatever `decode` is at the moment; set it anew to restart the verifier."""

    def __init__(
        self,
        decode: Decode,
        card: ModelCard,
        faults: MemoryFaults | None = None,
        seed: int = 0,
    ) -> None:
        self.decode = decode
        self.faults = faults or MemoryFaults()
        self.links: list[MemoryLink] = []
        self._card = card
        self._rng = random.Random(seed)  # noqa: S311 (faults, not secrets)

    async def describe(self) -> ModelCard:
        """The card it was made with."""
        return self._card

    @contextlib.asynccontextmanager
    async def connect(self, count: object = None) -> AsyncIterator[MemoryLink]:  # noqa: ARG002
        """A new link; its payload is not counted."""
        link = MemoryLink(self.decode, self.faults, self._rng)
        self.links.append(link)
        try:
            yield link
        finally:
            await link.close()

    async def close(self) -> None:
        """End the verifier's side of all links."""
        for link in self.links:
            await link.stop()
        self.links.clear()
