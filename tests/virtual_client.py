"""A client and a verifier over a table model on virtual time, for tests of what is generated."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from cloud_verifier.engine import Engine
from cloud_verifier.service import VerifierService
from cloud_verifier.table_target import TableTarget
from draftwire.testing.clock import run_virtual
from draftwire.testing.memory import MemoryFaults, MemoryTransport
from draftwire.testing.table import TableModel, TableTokenizer
from edge_client import AsyncEdgeClient
from edge_client.drafters.table import TableDrafter
from edge_client.results import Summary

MODEL = TableModel(vocabulary_size=320, states=512, eos_rate=1 / 12)
TOKENIZER = TableTokenizer(320)
PROMPT = "the cat"


@contextlib.asynccontextmanager
async def serving(
    model: TableModel = MODEL,
    draft_model: TableModel | None = None,
    drafters: int = 1,
    delay_s: float = 0.0,
    tokenizer: TableTokenizer = TOKENIZER,
) -> AsyncIterator[tuple[AsyncEdgeClient, Engine]]:
    engine = Engine(TableTarget(model), clock=asyncio.get_running_loop().time)

    async def compute(step: Any, arrivals: Any) -> Any:
        await asyncio.sleep(0.01)
        return step(arrivals)

    service = VerifierService(engine, compute, asyncio.get_running_loop().time)
    running = asyncio.create_task(service.run())
    transport = MemoryTransport(service.decode, engine.card, MemoryFaults(delay_s=delay_s))
    ours = [
        TableDrafter(draft_model or model.perturbed(0.2, 1), draft_time_s=0.001)
        for _ in range(drafters)
    ]
    async with AsyncEdgeClient(transport, tokenizer, ours) as client:
        yield client, engine
    running.cancel()


def read(prompt: str = PROMPT, model: TableModel = MODEL, **options: Any) -> Summary:
    """Generate, split, to the end."""

    async def run() -> Summary:
        async with serving(model) as (client, _):
            stream = client.generate(prompt, **{"max_tokens": 60, "num_draft_tokens": 4} | options)
            await stream.read()
            return stream.summary

    return run_virtual(run())  # type: ignore[no-any-return]
