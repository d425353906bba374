"""An app in a process of its own: generates texts, writes down what comes, may be killed.

Reads one JSON object from stdin, `Order`; writes JSON lines to stdout: of each job its tokens as
they come, then how it ended; at last what the process still holds when all is closed.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from typing import Any

from bench._known_text import KnownText, KnownTextDrafter
from bench._vitals import held_by_nobody, left_beyond
from draftwire.errors import Unavailable
from draftwire.testing.table import TableTokenizer
from draftwire.types import SamplingParams
from edge_client.client import AsyncEdgeClient
from edge_client.drafter import Drafter, Tokenizer
from edge_client.failover import FailoverTransport
from edge_client.retry import RetryPolicy
from edge_client.transport import GrpcTransport

SHARE_WRONG = 0.15
RETRY = RetryPolicy(first_wait_s=0.05, longest_wait_s=0.5, give_up_after_s=300.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Go on with a text of which `done` tokens are there, to its end. It is read by the verifiers
    at `addresses`; after each delta the reader rests for `pause_s`.
    """

    number: int
    addresses: Sequence[str]
    prompt: Sequence[int]
    text: Sequence[int]
    done: int
    temperature: float
    seed: int
    num_draft_tokens: int | None
    pause_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to do. `model` drafts, a GGUF file; None: the texts do, some tokens of them wrong."""

    model: str | None
    jobs: Sequence[Job]

    def dumps(self) -> bytes:
        """As JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def loads(cls, data: str) -> Order:
        """From JSON."""
        values = json.loads(data)
        return cls(model=values["model"], jobs=[Job(**job) for job in values["jobs"]])


class Drafting:
    """Drafters for jobs, and the tokenizer that goes with them."""

    def __init__(self, model: str | None) -> None:
        self.tokenizer: Tokenizer = TableTokenizer(320)
        self._llama: Any = None
        if model is not None:
            from edge_client.drafters.llama import LlamaModel

            self._llama = LlamaModel.load(model)
            self.tokenizer = self._llama.tokenizer

    def drafter(self, job: Job) -> Drafter:
        """One for this job alone."""
        if self._llama is not None:
            from edge_client.drafters.llama import LlamaDrafter

            return LlamaDrafter(self._llama, threads=1, context=1024)
        sampling = SamplingParams(temperature=job.temperature, seed=job.seed)
        known = KnownText(tuple(job.prompt), tuple(job.text), sampling)
        return KnownTextDrafter([known], wrong=SHARE_WRONG, seed=job.number)

    def close(self) -> None:
        """Free the model, if there is one."""
        if self._llama is not None:
            self._llama.close()


async def generate(job: Job, drafting: Drafting) -> None:
    """Do a job over a connection of its own, and write down what comes."""
    transports = [GrpcTransport(address) for address in job.addresses]
    transport = FailoverTransport(transports, retry_after_s=1.0)
    drafters = [drafting.drafter(job)]
    async with AsyncEdgeClient(transport, drafting.tokenizer, drafters, retry=RETRY) as client:
        await meet(client)
        stream = client.generate(
            [*job.prompt, *job.text[: job.done]],
            max_tokens=len(job.text) - job.done,
            temperature=job.temperature,
            seed=job.seed,
            ignore_eos=True,
            num_draft_tokens=job.num_draft_tokens,
        )
        async for delta in stream:
            write({"job": job.number, "tokens": [token.id for token in delta.tokens]})
            if job.pause_s:
                await asyncio.sleep(job.pause_s)
        summary = stream.summary
    ending = {"reason": summary.finish_reason.value, "streams": summary.streams}
    write({"job": job.number, "ended": ending})


async def meet(client: AsyncEdgeClient) -> None:
    """Wait until a verifier can be reached: a first contact is the app's to try again."""
    while True:
        try:
            await client.card()
            return
        except Unavailable:
            await asyncio.sleep(RETRY.first_wait_s)


def write(line: object) -> None:
    """Write it down: once this returns, whoever reads has it even if we are killed."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


async def run(order: Order) -> None:
    """All jobs side by side; then tell what is left of them."""
    if order.model is not None:
        importlib.import_module("llama_cpp")  # which opens two descriptors, once for all
    before = await held_by_nobody()
    async with AsyncExitStack() as stack:
        drafting = Drafting(order.model)
        stack.callback(drafting.close)
        async with asyncio.TaskGroup() as group:
            for job in order.jobs:
                group.create_task(generate(job, drafting))
    write({"left": await left_beyond(before)})


if __name__ == "__main__":
    logging.getLogger("edge_client").setLevel(logging.ERROR)  # of streams that break on purpose
    asyncio.run(run(Order.loads(sys.stdin.read())))
