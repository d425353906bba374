"""A verifier that goes away and comes back, over sockets: the text goes on meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from table_client import MODEL, Words, on_a_loop

from cloud_verifier.engine import Engine
from cloud_verifier.server import VerifierServer
from cloud_verifier.table_target import TableTarget
from draftwire.errors import LinkLost
from draftwire.testing.link import LinkEmulator, LinkProfile
from draftwire.types import ServingLimits
from edge_client import AsyncEdgeClient, EdgeClient, Kind, RetryPolicy, reduce
from edge_client.drafters.table import TableDrafter

PROMPT = [5, 6, 7]
TEXT = MODEL.generate(PROMPT, 120)
DRAFT = MODEL.perturbed(0.05, seed=1)
QUICK = RetryPolicy(first_wait_s=0.01, longest_wait_s=0.02, give_up_after_s=30.0)


def verifier(listen: str = "127.0.0.1:0") -> VerifierServer:
    target = TableTarget(MODEL, limits=ServingLimits(max_context=2048), num_blocks=256)
    return VerifierServer(Engine(target), listen, grace_s=0.0)


def drafter() -> TableDrafter:
    return TableDrafter(DRAFT, draft_time_s=0.001)


@pytest.mark.parametrize("k", [4, 0, None])
@on_a_loop
async def test_the_text_goes_on_while_the_verifier_is_away(k: int | None) -> None:
    server = verifier()
    await server.start()
    async with AsyncEdgeClient(server.address, Words(), [drafter()], retry=QUICK) as client:
        stream = client.generate(
            PROMPT, max_tokens=120, ignore_eos=True, num_draft_tokens=k, offline_tokens=40
        )
        unverified, deltas, again = 0, [], None
        async for delta in stream:
            deltas.append(delta)
            unverified += len(delta.tokens) * (delta.kind is Kind.UNVERIFIED)
            if len(stream.shown.token_ids) >= 40 and not server.engine.draining:
                await server.stop()
            if unverified >= 30 and again is None:
                again = verifier(server.address)
                await again.start()
        assert again is not None
        assert stream.shown.token_ids == TEXT
        assert stream.shown.final == stream.summary.text == reduce(deltas)
        assert stream.summary.unverified >= 20
        await again.stop()


@pytest.mark.parametrize("k", [4, None])
@on_a_loop
async def test_the_text_goes_on_while_a_network_is_silent(k: int | None) -> None:
    async with verifier() as server, LinkEmulator(server.address, LinkProfile(rtt_ms=2)) as link:
        retry = replace(QUICK, silent_after_s=0.05)
        async with AsyncEdgeClient(link.address, Words(), [drafter()], retry=retry) as client:
            stream = client.generate(
                PROMPT, max_tokens=120, ignore_eos=True, num_draft_tokens=k, offline_tokens=40
            )
            deltas, stall = [], None
            async for delta in stream:
                deltas.append(delta)
                if len(stream.shown.token_ids) >= 40 and stall is None:
                    stall = asyncio.create_task(link.stall(0.5))
            assert stream.shown.token_ids == TEXT
            assert stream.shown.final == stream.summary.text == reduce(deltas)
            assert stream.summary.unverified >= 20
            assert stream.summary.streams == 1  # the one that was there goes on


def test_the_blocking_client_says_what_is_verified_when_the_verifier_stays_away() -> None:
    retry = RetryPolicy(first_wait_s=0.01, longest_wait_s=0.02, give_up_after_s=0.2)
    with EdgeClient("127.0.0.1:1", Words(), [drafter()], retry=retry) as client:
        stream = client.generate(PROMPT, max_tokens=120, offline_tokens=40)
        with pytest.raises(LinkLost, match="can't be reached"):
            stream.read()
        assert stream.shown.final == ""
        assert stream.shown.tentative_token_ids == DRAFT.generate(
            PROMPT, len(stream.shown.tentative_token_ids)
        )
        assert stream.shown.tentative_token_ids
