"""Helpers for tests of the llama.cpp drafter."""

from __future__ import annotations

import pytest

from draftwire.types import SamplingParams, Tokens
from edge_client.drafter import Drafter, Proposal
from edge_client.drafters.llama import LlamaDrafter, LlamaModel


def drafter_of(model: LlamaModel, *, batch: int = 32, context: int = 256) -> LlamaDrafter:
    return LlamaDrafter(model, threads=1, context=context, batch=batch)


async def fresh(model: LlamaModel, sampling: SamplingParams, context: Tokens) -> Proposal:
    """What a context that never held anything else proposes after `context`."""
    drafter = drafter_of(model)
    await drafter.begin(sampling, context)
    proposal = await drafter.draft(0, context)
    await drafter.close()
    return proposal


async def text_of(drafter: Drafter, prompt: Tokens, count: int) -> list[int]:
    """`count` tokens drafted one after the other."""
    tokens = [(await drafter.draft(0, prompt)).token]
    while len(tokens) < count:
        tokens.append((await drafter.draft(len(prompt) + len(tokens), [])).token)
    return tokens


def same(a: Proposal, b: Proposal) -> bool:
    return a.token == b.token and a.confidence == pytest.approx(b.confidence, rel=1e-3)
