"""What the page is fed with: an answer token by token, where each came from, and why it was so.

`POST /draftwire/chat` takes the body of a chat completion and streams events, each a JSON object
whose `type` is one of

- `begin`: the `model`, before anything else;
- `tokens`: pairs of text and origin (`accepted`, `corrected`, `cloud`), and the `rest` of the text;
- `round`: what the controller chose, and what it measured;
- `link`: the connection to the verifier is `lost`, for that reason; null: it is there again;
- `end`: why it ended, and how it went.

An event with `error` in place of `type` is the last.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from typing import Any

from draftwire.types import ModelCard
from edge_client.client import AsyncEdgeClient
from edge_client.endpoint.errors import unsupported
from edge_client.endpoint.generation import run
from edge_client.endpoint.http import Events
from edge_client.endpoint.requests import Asked
from edge_client.endpoint.responses import figures
from edge_client.results import Delta
from edge_client.stream import AsyncStream

_LOOK_S = 0.2
"""How often the connection is looked at."""


class LiveAnswer:
    """One answer as events. Raises `Refused` for a request of several outputs."""

    def __init__(self, client: AsyncEdgeClient, asked: Asked) -> None:
        if asked.n != 1:
            raise unsupported("n", "here is one output at a time")
        self._rounds: deque[str] = deque()
        self._stream: AsyncStream = client.generate(
            **asked.prompts[0], rounds=self._rounds.append, **asked.options
        )

    async def tell(self, card: ModelCard, name: str, events: Events) -> None:
        """Send them all."""

        async def take(index: int, delta: Delta) -> None:  # noqa: ARG001
            await self._tell_rounds(events)
            await events.tell(_tokens(delta))

        await events.tell({"type": "begin", "model": name, "max_context": card.limits.max_context})
        watching = asyncio.create_task(self._watch(events))
        try:
            [summary] = await run([self._stream], take)
        finally:
            watching.cancel()
        await self._tell_rounds(events)
        reason = summary.finish_reason.value
        await events.tell({"type": "end", "finish_reason": reason, **figures(summary)})

    async def _tell_rounds(self, events: Events) -> None:
        while self._rounds:
            await events.tell(_round(json.loads(self._rounds.popleft())))

    async def _watch(self, events: Events) -> None:
        told = False
        while True:
            await asyncio.sleep(_LOOK_S)
            lost = self._stream.lost
            if told != (lost is not None):
                told = lost is not None
                await events.tell({"type": "link", "lost": None if lost is None else str(lost)})


def _tokens(delta: Delta) -> dict[str, Any]:
    pairs = [[token.text, token.origin.value] for token in delta.tokens]
    rest = delta.text[sum(len(token.text) for token in delta.tokens) :]
    return {"type": "tokens", "tokens": pairs, "rest": rest}


def _round(line: dict[str, Any]) -> dict[str, Any]:
    """Of a line of a trace what the page shows; figures may be null while nothing is known."""
    under, outcome, estimates = line["under"], line["outcome"], line.get("estimates", {})
    return {
        "type": "round",
        "mode": under["mode"],
        "window": under["window"],
        "sent": outcome["sent"],
        "judged": outcome["judged"],
        "held": outcome["held"],
        "committed": outcome["committed"],
        "passed": outcome["rows"] > 0,
        "rtt_ms": outcome["rtt_ms"] or estimates.get("rtt_ms"),
        "pass_ms": outcome["pass_ms"],
        "acceptance": estimates.get("acceptance"),
    }
