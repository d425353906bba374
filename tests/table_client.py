"""The client SDK with a table model on the device: words are token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from draftwire.testing.table import TableModel, table_fingerprint
from edge_client import AsyncEdgeClient
from edge_client.drafters.table import TableDrafter

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
