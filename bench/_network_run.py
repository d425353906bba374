"""One generation of the benchmark over networks, and what is recorded of it."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench._cores import Others
from bench._device import Device
from bench._prompts import Prompt
from bench._relay import Relay
from bench._settings import ADAPTIVE, FIXED, Cell
from draftwire.credentials import Credentials
from draftwire.types import SamplingParams, StopRules, Tokens, pack_tokens
from edge_client.controller import AdaptiveController
from edge_client.plan import Controller, FixedController
from edge_client.request import Request
from edge_client.session import Session
from edge_client.trace import TracedController
from edge_client.transport import GrpcTransport


class Runner:
    """Runs settings over a relay, one at a time, each with a connection and an owner of its own.

    The verifier shares its prefix cache among the sessions of one key only, and the drafter is
    made to forget: so each run reads its prompt anew, as a device does that asks for the first
    time. The controller of a cell lives on from run to run.
    """

    def __init__(
        self, relay: Relay, device: Device, keys: Iterator[str], pinned: Mapping[int, Sequence[int]]
    ) -> None:
        """`keys` are API keys, one a run; `pinned` the processes by the core that they are on."""
        self._relay = relay
        self.device = device
        self._keys = keys
        self._pinned = pinned
        self._controllers: dict[Cell, AdaptiveController] = {}
        self._warm = False

    async def warm_up(self, cell: Cell, settings: Sequence[str], prompt: Prompt, most: int) -> None:
        """The controller's first text of a cell; before the first cell a little of all settings."""
        if not self._warm:
            for setting in settings:
                if setting != ADAPTIVE:
                    await self.run(cell, setting, prompt, 8)
            self._warm = True
        if ADAPTIVE in settings and cell not in self._controllers:
            await self.run(cell, ADAPTIVE, prompt, most)

    async def run(self, cell: Cell, setting: str, prompt: Prompt, tokens: int) -> dict[str, Any]:
        """Generate so many tokens; returns the figures of the record."""
        first, *changes = cell.changes
        await self._relay.be(first.profile)
        transport = GrpcTransport(self._relay.address, Credentials(api_key=next(self._keys)))
        tokenizer, drafter = self.device.tokenizer, self.device.drafters[cell.drafter]
        try:
            card = await transport.describe()
            await self.device.forget(cell.drafter)
            session = Session(transport, card, fingerprint=tokenizer.fingerprint, drafter=drafter)
            lines: list[str] = []
            deliveries: list[tuple[float, int]] = []
            text: list[int] = []
            carried = await self._relay.carried()
            others, started = Others(self._pinned), time.perf_counter()
            generation = session.generate(
                prompt.tokens(tokenizer),
                TracedController(self._controller(cell, setting), lines.append),
                Request(sampling=cell.sampling, stop=StopRules(max_tokens=tokens, ignore_eos=True)),
            )
            async with contextlib.aclosing(generation.run()) as run:
                async for batch in run:
                    at_ms = (time.perf_counter() - started) * 1e3
                    deliveries.append((round(at_ms, 2), len(batch)))
                    text += [token for token, _ in batch]
                    while changes and len(text) >= changes[0].share * tokens:
                        change = changes.pop(0)
                        await self._relay.be(change.profile, change.stall_s)
            shares = others.shares()
            after = await self._relay.carried()
        finally:
            await transport.close()
        return {
            "deliveries": deliveries,
            **figures([json.loads(line) for line in lines]),
            "payload_bytes": [generation.bytes.up, generation.bytes.down],
            "socket_bytes": [now - then for now, then in zip(after, carried, strict=True)],
            "streams": generation.opens,
            "text": digest(text),
            "others": shares,
        }

    async def alone(self, drafter: str, prompt: Prompt, tokens: int) -> dict[str, Any]:
        """The draft model alone on the device, greedy: its own text, without any cloud."""
        await self.device.forget(drafter)
        model, feed, length = self.device.drafters[drafter], prompt.tokens(self.device.tokenizer), 0
        await model.begin(SamplingParams(), feed)
        deliveries, text, started = list[tuple[float, int]](), list[int](), time.perf_counter()
        others = Others(self._pinned)
        for _ in range(tokens):
            proposal = await model.draft(length, feed)
            assert proposal is not None, "a model always has a next token"
            deliveries.append((round((time.perf_counter() - started) * 1e3, 2), 1))
            text.append(proposal.token)
            length, feed = length + len(feed) + 1, []
        return {"deliveries": deliveries, "text": digest(text), "others": others.shares()}

    def _controller(self, cell: Cell, setting: str) -> Controller:
        if setting == ADAPTIVE:
            return self._controllers.setdefault(cell, AdaptiveController())
        return FixedController(FIXED[setting])


def figures(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a trace comes to: rounds, rows of passes, and time expected and taken, ms.

    A round is (drafted, accepted, committed). Drafts behind a rejected one count as drafted.
    Rows are the verifier's tokens, prompt apart. Times are those of the rounds that an estimate
    was there for.
    """
    counts, rows = [], 0
    expected_ms = taken_ms = 0.0
    for one in rounds:
        outcome = one["outcome"]
        judged, held = (outcome["judged"], outcome["held"]) if outcome["sent"] else (0, 0)
        drafted = max(judged, outcome["sent"]) if held < judged else judged
        counts.append((drafted, min(held, outcome["committed"]), outcome["committed"]))
        rows += 0 if one["first"] else outcome["rows"]
    for before, after in itertools.pairwise(rounds):
        if after["expected_ms"] is not None:
            expected_ms += after["expected_ms"] * after["outcome"]["committed"]
            taken_ms += (after["at_s"] - before["at_s"]) * 1e3
    return {
        "rounds": counts,
        "rows": rows,
        "expected_ms": round(expected_ms, 2),
        "taken_ms": round(taken_ms, 2),
    }


def digest(text: Tokens) -> str:
    """A text by its hash."""
    return hashlib.blake2b(pack_tokens(text), digest_size=8).hexdigest()
