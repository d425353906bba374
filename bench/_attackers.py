"""Devices and connections that mean ill, each in a process of its own.

    python -m bench._attackers NAME HOST:PORT

Prints a line when it has begun, then goes on until it is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import selectors
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import grpc.aio

from draftwire import codec
from draftwire.addresses import split_address
from draftwire.types import Draft, History, Open
from draftwire.v1 import verifier_pb2 as pb
from draftwire.v1 import verifier_pb2_grpc as rpc

HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
PROMPT = (3, 4, 5)
CONNECTIONS = 10_000


@dataclass(frozen=True, slots=True)
class Prey:
    """A verifier, and what it takes to open a session there."""

    address: str
    fingerprint: bytes

    def opening(self, **changes: Any) -> pb.ClientFrame:
        """A first frame for a session of its own."""
        values: dict[str, Any] = {
            "session_id": secrets.token_bytes(16),
            "attempt": 1,
            "generation": 1,
            "start": len(PROMPT),
            "history": History(tokens=PROMPT),
            "vocabulary_fingerprint": self.fingerprint,
        }
        return codec.encode_client(Open(**(values | changes)))


def draft(credit: int) -> pb.ClientFrame:
    """A draft of nothing at the prompt's end."""
    return codec.encode_client(Draft(base=len(PROMPT), epoch=0, credit=credit))


@contextlib.asynccontextmanager
async def stub(prey: Prey) -> AsyncIterator[rpc.VerifierAsyncStub]:
    """A connection of its own."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(prey.address, options=options) as channel:
        yield rpc.VerifierStub(channel)


async def slow_reader(prey: Prey) -> None:
    """Asks for all the tokens it may have and reads none."""
    async with stub(prey) as verifier:
        call = verifier.Decode()
        await call.write(prey.opening())
        await call.write(draft(credit=256))
        await asyncio.sleep(3.0)
        call.cancel()


async def silent_opener(prey: Prey) -> None:
    """Begins a hundred streams and sends nothing on them."""
    async with stub(prey) as verifier:
        calls = [verifier.Decode() for _ in range(100)]
        await asyncio.gather(*(call.wait_for_connection() for call in calls))
        await asyncio.gather(*(call.code() for call in calls))


async def frame_flood(prey: Prey) -> None:
    """Sends frames that change nothing as fast as they are taken."""
    async with stub(prey) as verifier:
        call = verifier.Decode()
        await call.write(prey.opening())
        nothing = draft(credit=0)
        while not call.done():
            await call.write(nothing)


async def refused_opener(prey: Prey) -> None:
    """Opens what must be refused, again and again."""
    async with stub(prey) as verifier:
        wrong = prey.opening(vocabulary_fingerprint=b"another")
        while True:
            call = verifier.Decode()
            await call.write(wrong)
            await call.code()


def connection_opener(prey: Prey) -> None:
    """Holds ten thousand connections that never open a stream, or as many as it gets."""
    address = split_address(prey.address)
    selector = selectors.DefaultSelector()
    held = 0
    while True:
        for _ in range(min(200, CONNECTIONS - held)):
            one = socket.socket()
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                one.connect(address)
            selector.register(one, selectors.EVENT_WRITE)
            held += 1
        for key, events in selector.select(timeout=0.001):
            one = key.fileobj  # type: ignore[assignment]
            try:
                if events & selectors.EVENT_WRITE:
                    one.send(HTTP2)
                    selector.modify(one, selectors.EVENT_READ)
                elif one.recv(4096):
                    continue
                else:
                    raise ConnectionResetError
            except OSError:
                selector.unregister(one)
                one.close()
                held -= 1


def nobody() -> None:
    """Computes, and leaves the verifier alone: beside an idle core another wakes more slowly."""
    while True:
        pass


ATTACKS: dict[str, tuple[Callable[[Prey], Coroutine[Any, Any, None]], int]] = {
    "slow reader": (slow_reader, 16),
    "silent opener": (silent_opener, 8),
    "frame flood": (frame_flood, 8),
    "refused opener": (refused_opener, 8),
}
"""What each does, and how many do it at once. Beside them: "connection opener" and "nobody"."""


async def attack(name: str, prey: Prey) -> None:
    """Do that for ever."""
    one, count = ATTACKS[name]

    async def again() -> None:
        while True:
            try:
                await one(prey)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await asyncio.sleep(0.01)

    await asyncio.gather(*(again() for _ in range(count)))


def main() -> None:
    """Begin."""
    name, address, fingerprint = sys.argv[1:]
    prey = Prey(address, bytes.fromhex(fingerprint))
    print("begun", flush=True)
    if name == "nobody":
        nobody()
    if name == "connection opener":
        connection_opener(prey)
    asyncio.run(attack(name, prey))


if __name__ == "__main__":
    main()
