"""The device of the benchmark over networks: one draft model, as it is and spoilt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench._settings import GOOD, POOR, Q4
from draftwire.testing.table import TableModel, TableTokenizer
from edge_client.drafter import Drafter, Tokenizer
from edge_client.drafters.llama import LlamaDrafter, LlamaModel
from edge_client.drafters.perturbed import NoisyDrafter
from edge_client.drafters.table import TableDrafter

NOISE = {Q4: 0.0, GOOD: 0.9, POOR: 1.6}
"""Noise on the draft model's logits (`NoisyDrafter`), by the drafter's name."""

TABLE = "table"
"""The model that has no weights: a few seconds' try of everything around the models."""

_TABLE_NOISE = {Q4: 0.02, GOOD: 0.15, POOR: 0.4}
_CONTEXT = 1024


@dataclass(frozen=True, slots=True)
class Device:
    """A tokenizer, and drafters by name; each has a context of its own, all share the model."""

    tokenizer: Tokenizer
    drafters: Mapping[str, Drafter]

    @classmethod
    def of(cls, model: str) -> Device:
        """Drafts with a GGUF file in llama.cpp on one thread, or with the table model."""
        if model == TABLE:
            target = TableModel(vocabulary_size=320, eos_rate=0.01)  # as the verifier's
            spoilt = {name: target.perturbed(size, 1) for name, size in _TABLE_NOISE.items()}
            drafters = {name: TableDrafter(one, draft_time_s=1e-3) for name, one in spoilt.items()}
            return cls(TableTokenizer(320), drafters)
        loaded = LlamaModel.load(model)
        try:
            noisy = {
                name: NoisyDrafter(LlamaDrafter(loaded, threads=1, context=_CONTEXT), size)
                for name, size in NOISE.items()
            }
        finally:
            loaded.close()  # the drafters hold it from here on
        return cls(loaded.tokenizer, noisy)

    async def forget(self, drafter: str) -> None:
        """Have a drafter read its next prompt anew."""
        await self.drafters[drafter].draft(0, [1])

    async def close(self) -> None:
        """Free everything."""
        for drafter in self.drafters.values():
            await drafter.close()
