"""Two verifiers, each stopped and started again while 32 streams go on."""

from __future__ import annotations

import asyncio
import random

import pytest

pytest.importorskip("torch")
pytest.importorskip("llama_cpp")
pytest.importorskip("prometheus_client", reason="needs the cloud extra")

from bench._known_text import KnownText, KnownTextDrafter
from bench._oracle import TableOracle
from bench._verifier import Verifier
from draftwire.testing.link import LinkEmulator, LinkProfile
from edge_client import AsyncEdgeClient, RetryPolicy
from edge_client.failover import FailoverTransport
from edge_client.transport import GrpcTransport

STREAMS = 32
SERVE = ("--model", "table", "--kv-tokens", "16384", "--session-ttl", "1", "--grace", "0.2")
FAR = LinkProfile(rtt_ms=40)


class Devices:
    """Streams that begin again when they end, until both verifiers have been restarted."""

    def __init__(self, first: str, second: str, oracle: TableOracle) -> None:
        self.texts = self.refuges = 0
        self._oracle = oracle
        self._rolled = False
        self._tokens = [0] * STREAMS
        self._transports = [GrpcTransport(first), GrpcTransport(second)]

    async def run(self) -> None:
        transport = FailoverTransport(self._transports, retry_after_s=0.5)
        drafters = [
            KnownTextDrafter(self._oracle.texts, wrong=0.15, seed=seed) for seed in range(STREAMS)
        ]
        retry = RetryPolicy(first_wait_s=0.02, longest_wait_s=0.2, give_up_after_s=20.0)
        async with (
            AsyncEdgeClient(transport, self._oracle.tokenizer, drafters, retry=retry) as client,
            asyncio.TaskGroup() as group,
        ):
            for number in range(STREAMS):
                group.create_task(self._stream(client, number))

    async def all_come_on(self) -> None:
        """Wait until every stream has got more tokens than it has now."""
        before = list(self._tokens)
        while any(now <= then for now, then in zip(self._tokens, before, strict=True)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    def rolled(self) -> None:
        """Come to an end."""
        self._rolled = True

    async def _stream(self, client: AsyncEdgeClient, number: int) -> None:
        draw = random.Random(number)
        while not self._rolled:
            text: KnownText = draw.choice(self._oracle.texts)
            stream = client.generate(
                list(text.prompt),
                max_tokens=len(text.text),
                temperature=text.sampling.temperature,
                seed=text.sampling.seed,
                ignore_eos=True,
                num_draft_tokens=draw.choice((0, 2, 4, None)),
            )
            got: list[int] = []
            async for delta in stream:
                got += [token.id for token in delta.tokens]
                self._tokens[number] += len(delta.tokens)
            assert got == list(text.text)
            self.texts += 1
            self.refuges += stream.summary.streams > 1


async def restart(one: Verifier, devices: Devices) -> None:
    """Stop one while it is used, see every stream go on without it, and start it again."""
    assert one.values()["num_requests_running"] > 0
    assert await asyncio.to_thread(one.stop) == 0
    await devices.all_come_on()
    await asyncio.to_thread(one.start)
    await devices.all_come_on()


async def roll(first: Verifier, second: Verifier, oracle: TableOracle) -> Devices:
    """Restart one verifier after the other."""
    async with (
        LinkEmulator(first.address, FAR) as to_first,
        LinkEmulator(second.address, FAR) as to_second,
        asyncio.TaskGroup() as group,
    ):
        devices = Devices(to_first.address, to_second.address, oracle)
        group.create_task(devices.run())
        await devices.all_come_on()
        await restart(first, devices)
        await restart(second, devices)
        devices.rolled()
    return devices


@pytest.mark.slow
def test_a_rolling_restart_is_seen_by_no_text() -> None:
    oracle = TableOracle(tokens=250, count=20)
    with Verifier(SERVE) as first, Verifier(SERVE) as second:
        devices = asyncio.run(roll(first, second, oracle))
        assert first.left(within_s=10) == second.left(within_s=10) == {}
    assert devices.texts >= STREAMS
    assert devices.refuges >= STREAMS
