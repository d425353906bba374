"""A client, and a cloud that goes away and comes back, on virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from typing import Any

from virtual_client import PROMPT, TOKENIZER

from cloud_verifier.engine import Engine
from cloud_verifier.service import VerifierService
from cloud_verifier.table_target import TableTarget
from draftwire.errors import LinkLost
from draftwire.testing.clock import run_virtual
from draftwire.testing.memory import MemoryFaults, MemoryLink, MemoryTransport
from draftwire.testing.table import TableModel
from draftwire.types import ModelCard, ServingLimits
from edge_client import AsyncEdgeClient, Delta, Kind, RetryPolicy
from edge_client.drafters.table import TableDrafter
from edge_client.plan import FixedController, Plan
from edge_client.session import Session
from edge_client.stream import AsyncStream

MODEL = TableModel(vocabulary_size=320, states=512)
PROMPT_IDS = TOKENIZER.encode(PROMPT)
TEXT = MODEL.generate(PROMPT_IDS, 80)
WORDS = b"".join(map(TOKENIZER.piece, TEXT)).decode(errors="replace")
RETRY = RetryPolicy(first_wait_s=0.05, longest_wait_s=0.2, give_up_after_s=5.0)
PLANS = {
    "waiting": Plan.waiting(4),
    "flowing": Plan.flowing(12, 2),
    "run-on": Plan.flowing(12, 2, credit=6),
    "cloud alone": Plan.cloud_alone(),
    "shadow": Plan.shadow(4),
}


class World:
    """A client, and a cloud that goes away and comes back."""

    def __init__(
        self, transport: MemoryTransport, client: AsyncEdgeClient, computing: asyncio.Event
    ) -> None:
        self.transport = transport
        self.client = client
        self.computing = computing  # while it is not set, the verifier is there and silent
        self._decode, self._connect = transport.decode, transport.connect
        self._found = asyncio.Event()

    def leave(self, *, silently: bool = False) -> None:
        """Cut all streams; new ones fail, or if `silently` do not even that."""

        async def decode(frames: Any) -> Any:
            await anext(frames)
            raise LinkLost("no way there")
            yield

        @contextlib.asynccontextmanager
        async def connect(count: object = None) -> AsyncIterator[MemoryLink]:
            if silently:
                await self._found.wait()
            async with self._connect(count) as link:
                yield link

        self._found.clear()
        self.transport.decode = decode
        self.transport.connect = connect  # type: ignore[method-assign]
        for link in self.transport.links:
            link.cut()

    def come_back(self) -> None:
        self.transport.decode = self._decode
        self._found.set()

    def hide(self, after_s: float = 0.0) -> None:
        """From now on nothing is said of what the verifier serves, only that, that late."""

        async def describe() -> ModelCard:
            await asyncio.sleep(after_s)
            raise LinkLost("no way there")

        self.transport.describe = describe  # type: ignore[method-assign]

    def become(self, other: World) -> None:
        """Another verifier stands at this one's address."""
        self._decode = other.transport.decode
        self.leave()
        self.come_back()

    async def session(self, retry: RetryPolicy = RETRY) -> Session:
        return Session(
            self.transport,
            await self.client.card(),
            fingerprint=TOKENIZER.fingerprint,
            retry=retry,
            clock=asyncio.get_running_loop().time,
        )

    async def stream(
        self, plan: Plan | None = None, *, session: Session | None = None, **options: Any
    ) -> AsyncStream:
        options = {"max_tokens": len(TEXT), "offline_tokens": 20} | options
        session = session or await self.session()
        stream = self.client.generate(options.pop("prompt", PROMPT_IDS), session=session, **options)
        if plan is not None:
            stream._controller = FixedController(plan)
        return stream


@contextlib.asynccontextmanager
async def world(
    drafter: TableDrafter | None = None, *, model: TableModel = MODEL, **limits: int
) -> AsyncIterator[World]:
    clock = asyncio.get_running_loop().time
    serving = ServingLimits(**{"max_context": 400, "max_rows": 9} | limits)
    engine = Engine(TableTarget(model, limits=serving), clock=clock)
    computing = asyncio.Event()
    computing.set()

    async def compute(step: Any, arrivals: Any) -> Any:
        await asyncio.sleep(0.01)
        await computing.wait()
        return step(arrivals)

    service = VerifierService(engine, compute, clock)
    running = asyncio.create_task(service.run())
    transport = MemoryTransport(service.decode, engine.card, MemoryFaults(delay_s=0.01))
    drafter = drafter or TableDrafter(MODEL, draft_time_s=0.002)
    async with AsyncEdgeClient(transport, TOKENIZER, [drafter], retry=RETRY) as client:
        yield World(transport, client, computing)
    running.cancel()


def on_virtual_time(test: Callable[..., Any]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        run_virtual(test(*args, **kwargs), timeout_s=1000)

    return run


async def read(stream: AsyncStream, then: dict[int, Callable[[], object]]) -> list[Delta]:
    """All deltas; `then` says what to do when so many tokens are committed."""
    deltas = []
    async for delta in stream:
        deltas.append(delta)
        for count in [count for count in then if len(stream.shown.token_ids) >= count]:
            then.pop(count)()
    return deltas


def of(kind: Kind, deltas: list[Delta]) -> list[int]:
    return [token.id for delta in deltas if delta.kind is kind for token in delta.tokens]


def later(seconds: float, do: Callable[[], object]) -> None:
    asyncio.get_running_loop().call_later(seconds, do)
