"""The client SDK with a table model on the device: words are token ids."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, ParamSpec

from draftwire.testing.table import TableModel, table_fingerprint
from edge_client import AsyncEdgeClient
from edge_client.drafters.table import TableDrafter

P = ParamSpec("P")

MODEL = TableModel(vocabulary_size=64, states=1024, seed=3)


class Words:
    """A tokenizer of decimal numbers."""

    fingerprint = table_fingerprint(MODEL.vocabulary_size)
    eos_token_ids: frozenset[int] = frozenset()

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        return [token for message in messages for token in self.encode(message["content"])]

    def piece(self, token: int) -> bytes:
        return f"{token} ".encode()


def table_client(address: str, noise: float = 0.3) -> AsyncEdgeClient:
    """A client whose drafts mostly hold: see `TableModel.perturbed`."""
    return AsyncEdgeClient(address, Words(), [TableDrafter(MODEL.perturbed(noise, seed=1))])


def on_a_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test that is a coroutine, given a minute."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(60):
                await test(*args, **kwargs)

        asyncio.run(bounded())

    return run
