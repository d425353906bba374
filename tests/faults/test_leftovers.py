"""What a device still has when its client is closed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Iterator

import pytest
from table_client import MODEL, Words, on_a_loop

from cloud_verifier.engine import Engine
from cloud_verifier.server import VerifierServer
from cloud_verifier.table_target import TableTarget
from draftwire.testing.link import LinkEmulator, LinkProfile
from draftwire.types import SESSION_ID_BYTES, History, Open, Opened, ServingLimits
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
