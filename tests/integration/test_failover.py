"""Several verifiers of one model: the text goes on at the next when one goes away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest
from table_client import MODEL, Words, on_a_loop

from cloud_verifier.engine import Engine, EngineConfig
from cloud_verifier.server import VerifierServer
from cloud_verifier.table_target import TableTarget
from draftwire import codec
from draftwire.errors import Draining, InvalidRequest, LinkLost, ServerFull
from draftwire.types import ModelCard, Opened, ServingLimits
from draftwire.v1 import verifier_pb2_grpc as rpc
from edge_client import AsyncEdgeClient, RetryPolicy
from edge_client import transport as transport_module
from edge_client.drafters.table import TableDrafter
from edge_client.failover import FailoverTransport, transport_to
from edge_client.transport import GrpcTransport, Transport

PROMPT = [5, 6, 7]
QUICK = RetryPolicy(first_wait_s=0.01, longest_wait_s=0.02, give_up_after_s=5.0)


def verifier(listen: str = "127.0.0.1:0", **config: Any) -> VerifierServer:
    target = TableTarget(MODEL, limits=ServingLimits(max_context=2048), num_blocks=256)
    return VerifierServer(Engine(target, EngineConfig(**config)), listen, grace_s=0.0)


@contextlib.asynccontextmanager
async def client(transport: Transport | str) -> AsyncIterator[AsyncEdgeClient]:
    drafters = [TableDrafter(MODEL.perturbed(0.3, seed=1))]
    async with AsyncEdgeClient(transport, Words(), drafters, retry=QUICK) as made:
        yield made


async def say(made: AsyncEdgeClient, count: int = 20) -> list[int]:
    stream = made.generate(PROMPT, max_tokens=count, ignore_eos=True)
    return [int(word) for word in (await stream.read()).split()]


@on_a_loop
async def test_a_text_goes_on_at_the_next_verifier() -> None:
    first = verifier()
    await first.start()
    async with verifier() as second, client(f"{first.address}, {second.address}") as made:
        stream = made.generate(PROMPT, max_tokens=400, ignore_eos=True)
        text: list[int] = []
        async for delta in stream:
            text += [token.id for token in delta.tokens]
            if len(text) > 100 and not first.engine.draining:
                assert not second.engine.idle
                await first.stop()
        assert text == MODEL.generate(PROMPT, 400)
        assert second.engine.idle


class Hung(rpc.VerifierServicer):
    """Says nothing, or nothing but `opened`, while gRPC answers pings."""

    def __init__(self, *, opens: bool) -> None:
        self._opens = opens

    async def DescribeModel(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802
        return codec.encode_card(TableTarget(MODEL).card)

    async def Decode(  # noqa: N802
        self,
        request_iterator: Any,  # noqa: ARG002
        context: Any,  # noqa: ARG002
    ) -> AsyncIterator[Any]:
        if self._opens:
            card = TableTarget(MODEL).card
            opened = Opened(target=card.target, limits=card.limits, length=len(PROMPT))
            yield codec.encode_server(opened)
        await asyncio.Event().wait()


@on_a_loop
@pytest.mark.parametrize("opens", [False, True])
async def test_one_that_hangs_is_left_for_the_next(
    monkeypatch: pytest.MonkeyPatch, *, opens: bool
) -> None:
    monkeypatch.setattr(transport_module, "_FIRST_WITHIN_S", 0.3)
    monkeypatch.setattr(transport_module, "_NEXT_WITHIN_S", 0.3)
    hung = grpc.aio.server()
    rpc.add_VerifierServicer_to_server(Hung(opens=opens), hung)
    address = f"127.0.0.1:{hung.add_insecure_port('127.0.0.1:0')}"
    await hung.start()
    try:
        async with verifier() as second, client(f"{address},{second.address}") as made:
            assert await say(made) == MODEL.generate(PROMPT, 20)
    finally:
        await hung.stop(None)


@on_a_loop
async def test_one_that_is_shutting_down_refuses_nobody_who_knows_another() -> None:
    async with verifier() as first, verifier() as second:
        first.engine.draining = True
        async with client(first.address) as made:
            with pytest.raises(Draining):
                await say(made)
        async with client(f"{first.address},{second.address}") as made:
            assert await say(made) == MODEL.generate(PROMPT, 20)
        assert second.engine.idle


@on_a_loop
async def test_one_that_is_full_sends_nobody_away_while_another_has_room() -> None:
    async with (
        verifier(max_sessions=1) as first,
        verifier(max_sessions=1) as second,
        client(first.address) as one,
        client(second.address) as two,
        client(f"{first.address},{second.address}") as made,
    ):
        busy = one.generate(PROMPT, max_tokens=0), two.generate(PROMPT, max_tokens=0)
        await anext(busy[0])
        assert await say(made) == MODEL.generate(PROMPT, 20)
        await anext(busy[1])
        with pytest.raises(ServerFull):
            await say(made)
        for stream in busy:
            await stream.close()


@on_a_loop
async def test_the_first_that_can_be_reached_is_asked() -> None:
    async with verifier() as only, client(f"127.0.0.1:1,{only.address}") as made:
        assert (await made.card()).target.model == "table"
        assert await say(made) == MODEL.generate(PROMPT, 20)


@on_a_loop
async def test_the_preferred_one_is_used_again_when_it_answers() -> None:
    at = 0.0
    async with verifier() as second:
        first = verifier()
        await first.start()
        transports = [GrpcTransport(first.address), GrpcTransport(second.address)]
        failover = FailoverTransport(transports, retry_after_s=10.0, clock=lambda: at)
        async with client(failover) as made:
            assert await say(made)
            await first.stop()
            assert await say(made) == MODEL.generate(PROMPT, 20)
            again = verifier(first.address)
            await again.start()
            assert await say(made)  # left alone for ten seconds
            assert not again.engine.idle
            at = 10.0
            for _ in range(100):  # the connection itself waits a little before it tries again
                await say(made)
                if again.engine.idle:
                    break
                at += 10.0
            assert again.engine.idle
            await again.stop()


class Contacts(GrpcTransport):
    """A verifier that answers when asked for the first time only if it is `there` already."""

    def __init__(self, address: str, *, there: bool) -> None:
        super().__init__(address)
        self._there = there
        self.asked = asyncio.Event()
        self.told = asyncio.Event()

    async def describe(self) -> ModelCard:
        there, self._there = self._there, True
        if there:
            return await super().describe()
        self.asked.set()
        await self.told.wait()
        raise LinkLost("not there")


@on_a_loop
async def test_one_that_comes_back_while_others_are_asked_is_used() -> None:
    at = 0.0
    async with verifier() as real:
        first, second = Contacts(real.address, there=False), Contacts(real.address, there=False)
        first.told.set()
        failover = FailoverTransport([first, second], retry_after_s=1.0, clock=lambda: at)
        for one in (first, second):
            failover._heard(one, LinkLost("gone"))
        at = 2.0
        waiting = asyncio.create_task(failover._working())
        await second.asked.wait()  # the first has not answered, the second has yet to
        at = 4.0
        assert await failover._working() is first
        second.told.set()
        assert await waiting is first
        await failover.close()


@on_a_loop
async def test_when_none_can_be_reached_the_error_says_so() -> None:
    async with client("127.0.0.1:1,127.0.0.1:2") as made:
        with pytest.raises(LinkLost, match=r"127\.0\.0\.1:2 can't be reached"):
            await made.card()


@pytest.mark.parametrize("addresses", ["", ",", "127.0.0.1:7433,", "127.0.0.1:7433 b:1"])
def test_addresses_that_are_none_are_refused(addresses: str) -> None:
    with pytest.raises(InvalidRequest, match="no address"):
        transport_to(addresses)
