"""What a device still has when its client is closed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import grpc.aio
import psutil
import pytest
from table_client import MODEL, Words, on_a_loop

from cloud_verifier.engine import Engine
from cloud_verifier.server import VerifierServer
from cloud_verifier.table_target import TableTarget
from draftwire import codec
from draftwire.errors import DraftwireError
from draftwire.testing.link import LinkEmulator, LinkProfile
from draftwire.types import SESSION_ID_BYTES, History, Open, Opened, ServingLimits
from draftwire.v1 import verifier_pb2 as pb
from draftwire.v1 import verifier_pb2_grpc as rpc
from edge_client import AsyncEdgeClient, RetryPolicy
from edge_client.drafters.table import TableDrafter
from edge_client.transport import GrpcTransport, WireBytes

PROMPT = [5, 6, 7]
QUICK = RetryPolicy(first_wait_s=0.01, longest_wait_s=0.02, give_up_after_s=30.0)


@pytest.fixture
def no_chance_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@contextlib.asynccontextmanager
async def reaching(profile: LinkProfile) -> AsyncIterator[LinkEmulator]:
    target = TableTarget(MODEL, limits=ServingLimits(max_context=2048), num_blocks=256)
    async with (
        VerifierServer(Engine(target), "127.0.0.1:0", grace_s=0.0) as verifier,
        LinkEmulator(verifier.address, profile) as link,
    ):
        yield link


async def all_closed(link: LinkEmulator) -> None:
    async with asyncio.timeout(10):
        while link.open_sockets:  # noqa: ASYNC110 (a socket closes when the peer's does)
            await asyncio.sleep(0.01)


@pytest.mark.usefixtures("no_chance_collection")
@on_a_loop
async def test_a_closed_client_holds_no_connection_even_if_its_streams_were_cut() -> None:
    async with reaching(LinkProfile(rtt_ms=2)) as link:
        drafters = [TableDrafter(MODEL.perturbed(0.3, seed=1))]
        client = AsyncEdgeClient(link.address, Words(), drafters, retry=QUICK)
        stream = client.generate(PROMPT, max_tokens=200, ignore_eos=True)
        said, cut = list[int](), False
        async for delta in stream:
            said += [token.id for token in delta.tokens]
            if len(said) > 50 and not cut:
                link.cut()
                cut = True
        assert said == MODEL.generate(PROMPT, 200)
        assert stream.summary.streams > 1
        await client.close()  # while the stream and what was logged of it are still there
        await all_closed(link)


@pytest.mark.usefixtures("no_chance_collection")
@on_a_loop
async def test_nor_if_a_stream_was_left_between_two_frames() -> None:
    async with reaching(LinkProfile()) as link:
        transport = GrpcTransport(link.address)
        async with transport.connect(WireBytes()) as stream:
            await stream.send(
                Open(
                    session_id=bytes(SESSION_ID_BYTES),
                    attempt=1,
                    generation=1,
                    start=len(PROMPT),
                    history=History(tokens=tuple(PROMPT)),
                    vocabulary_fingerprint=Words.fingerprint,
                )
            )
            assert isinstance(await stream.receive(), Opened)
        await transport.close()
        await all_closed(link)


class Breaker(rpc.VerifierServicer):
    """Ends every stream as `how` says."""

    card = codec.encode_card(TableTarget(MODEL).card)
    how = ""

    async def DescribeModel(  # noqa: N802 (named by the contract)
        self,
        request: pb.DescribeModelRequest,  # noqa: ARG002
        context: Any,  # noqa: ARG002
    ) -> pb.ModelCard:
        return self.card

    async def Decode(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.ClientFrame], context: Any
    ) -> AsyncIterator[pb.ServerFrame]:
        await anext(aiter(request_iterator))
        match self.how:
            case "a long message":
                await context.abort(grpc.StatusCode.INTERNAL, "x" * (1 << 20))
            case "a remedy that is no text":
                said = ("draftwire-code", "INTERNAL"), ("draftwire-remedy-bin", b"\xff\xfe")
                await context.abort(grpc.StatusCode.INTERNAL, "bad", trailing_metadata=said)
            case "a message that a terminal obeys":
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "\x1b[2J")
            case "a frame that is too large":
                yield pb.ServerFrame(padding=bytes(2 << 20))
            case "a frame of nothing":
                yield pb.ServerFrame()
            case "limits of nothing":
                yield pb.ServerFrame(opened=pb.Opened())


@pytest.mark.usefixtures("no_chance_collection")
@on_a_loop
async def test_nor_does_a_verifier_that_breaks_every_stream_leave_anything() -> None:
    def held() -> tuple[int, int, int]:
        return psutil.Process().num_fds(), threading.active_count(), len(asyncio.all_tasks())

    server, breaker = grpc.aio.server(), Breaker()
    rpc.add_VerifierServicer_to_server(breaker, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    retry = RetryPolicy(first_wait_s=0.01, longest_wait_s=0.02, give_up_after_s=0.05)
    before: tuple[int, int, int] | None = None
    for breaker.how in (
        *("a frame of nothing", "a long message", "a remedy that is no text"),
        *("a message that a terminal obeys", "a frame that is too large", "limits of nothing"),
    ):
        drafters = [TableDrafter(MODEL)]
        async with AsyncEdgeClient(address, Words(), drafters, retry=retry) as client:
            with pytest.raises(DraftwireError) as raised:
                await client.generate(PROMPT, max_tokens=20, offline_tokens=5).read()
        assert str(raised.value).isprintable()
        assert len(str(raised.value)) < 5000
        before = before or held()  # after the first, what is made once has been made
    async with asyncio.timeout(10):
        while any(now > then for now, then in zip(held(), before, strict=True)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await server.stop(0)
