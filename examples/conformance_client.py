"""A client for `draftwire conformance`, as one in another language would be.

    draftwire conformance -- python examples/conformance_client.py

It reads tasks from stdin, a line of JSON for each, generates as each says, and answers on stdout
with a line of JSON: the tokens it holds and how the text ended, or the code of its error.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from draftwire.adjust import Adjuster
from draftwire.types import SamplingParams, StopRules, Tokens, VerifyMode, common_prefix
from edge_client import DraftwireError
from edge_client.drafter import Proposal
from edge_client.plan import FixedController, Plan
from edge_client.request import Request
from edge_client.session import Session
from edge_client.transport import GrpcTransport, Transport


class ListDrafter:
    """Drafts what the task says for each position, whatever the context is."""

    max_context = 1 << 20

    def __init__(self, first: int, drafts: list[int]) -> None:
        self._first = first
        self._drafts = drafts
        self._context: list[int] = []

    async def begin(
        self,
        sampling: SamplingParams,  # noqa: ARG002
        context: Tokens,
        adjuster: Adjuster | None = None,  # noqa: ARG002
        mode: VerifyMode = VerifyMode.MATCH,  # noqa: ARG002
    ) -> int:
        return common_prefix(self._context, context)

    async def draft(self, keep: int, tokens: Tokens) -> Proposal | None:
        self._context[keep:] = tokens
        index = len(self._context) - self._first
        if index >= len(self._drafts):
            return None
        await asyncio.sleep(0)
        self._context.append(self._drafts[index])
        return Proposal(self._drafts[index], 1.0)

    async def close(self) -> None:
        self._context.clear()


async def begun(task: dict[str, Any], transport: Transport) -> Session:
    """A session for the task."""
    return Session(
        transport,
        await transport.describe(),
        fingerprint=bytes.fromhex(task["vocabulary_fingerprint"]),
        drafter=ListDrafter(len(task["prompt"]), task["drafts"]),
        eos_token_ids=frozenset(task["eos_token_ids"]),
        clock=asyncio.get_running_loop().time,
    )


async def answer(task: dict[str, Any], session: Session) -> dict[str, Any]:
    """Generate as the task says, in one turn or two; what came of it."""
    plan = Plan(
        window=task["window"],
        chunk=task["chunk"],
        credit=task["credit"],
        pipelined=task["pipelined"],
    )
    prompt, finish = task["prompt"], ""
    turns: list[list[int]] = [[], task["then"]] if task["then"] else [[]]
    for more in turns:
        generation = session.generate(
            [*(session.tokens or prompt), *more],
            FixedController(plan),
            Request(
                sampling=SamplingParams(temperature=task["temperature"], seed=task["seed"]),
                stop=StopRules(max_tokens=task["max_tokens"], strings=task["stop_strings"]),
            ),
        )
        said = 0
        try:
            async for commits in generation.run():
                said += len(commits)
                if 0 < task["cancel_after"] <= said:
                    generation.cancel()
        except DraftwireError as error:
            return {"error": error.code}
        finish = generation.finished.reason.value if generation.finished else ""
    return {"tokens": session.tokens[len(prompt) :], "finish": finish}


async def serve() -> None:
    """Answer tasks until there are no more."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        task = json.loads(line)
        transport = GrpcTransport(task["verifier"])
        result = await answer(task, await begun(task, transport))
        await transport.close()
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    asyncio.run(serve())
