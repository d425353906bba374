"""What a device still has when its client is closed."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest
from table_client import MODEL, Words, on_a_loop

from cloud_verifier.engine import Engine
from cloud_verifier.server import VerifierServer
from cloud_verifier.table_target import TableTarget
from draftwire.testing.link import LinkEmulator, LinkProfile
from draftwire.types import ServingLimits
from edge_client import AsyncEdgeClient, RetryPolicy
from edge_client.drafters.table import TableDrafter

QUICK = RetryPolicy(first_wait_s=0.01, longest_wait_s=0.02, give_up_after_s=30.0)


@pytest.fixture
def no_chance_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_chance_collection")
@on_a_loop
async def test_a_closed_client_holds_no_connection_even_if_its_streams_were_cut() -> None:
    target = TableTarget(MODEL, limits=ServingLimits(max_context=2048), num_blocks=256)
    async with (
        VerifierServer(Engine(target), "127.0.0.1:0", grace_s=0.0) as verifier,
        LinkEmulator(verifier.address, LinkProfile(rtt_ms=2)) as link,
    ):
        if True:
            client = AsyncEdgeClient(
                link.address, Words(), [TableDrafter(MODEL.perturbed(0.3, seed=1))], retry=QUICK
            )
            stream = client.generate([5, 6, 7], max_tokens=200, ignore_eos=True)
            said, cut = list[int](), False
            async for delta in stream:
                said += [token.id for token in delta.tokens]
                if len(said) > 50 and not cut:
                    link.cut()
                    cut = True
            assert said == MODEL.generate([5, 6, 7], 200)
            assert stream.summary.streams > 1
            await client.close()  # while the stream and what was logged of it are still there
            async with asyncio.timeout(10):
                while link.open_sockets:  # noqa: ASYNC110 (a socket closes when the peer's does)
                    await asyncio.sleep(0.01)
