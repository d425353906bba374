"""Drafting with llama.cpp and the demo model: rollbacks, reuse and cancelled calls."""

from __future__ import annotations

import asyncio
import random

import pytest
from llama_drafting import drafter_of, fresh, same, text_of

from draftwire.errors import InternalError
from draftwire.testing.demo import demo_model_path
from draftwire.types import SamplingParams
from edge_client import AsyncEdgeClient
from edge_client.drafter import Drafter
from edge_client.drafters.llama import LlamaModel

pytestmark = pytest.mark.models

CHAT = [{"role": "user", "content": "Name three colours of the rainbow."}]
SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, seed=11)


@pytest.mark.parametrize("sampling", [SamplingParams(), SAMPLED], ids=["greedy", "sampled"])
def test_after_any_rollbacks_a_draft_is_a_fresh_contexts(
    model: LlamaModel, sampling: SamplingParams
) -> None:
    async def scenario() -> None:
        rng = random.Random(5)
        context = model.tokenizer.encode_chat(CHAT)
        drafter: Drafter = drafter_of(model, batch=16)
        assert await drafter.begin(sampling, context) == 0
        context.append((await drafter.draft(0, context)).token)
        for _ in range(30):
            keep = len(context) if rng.random() < 0.5 else rng.randint(1, len(context))
            keep = min(keep, 70)
            added = [rng.randrange(49152) for _ in range(rng.choice([0, 0, 1, 4, 20]))]
            context[keep:] = added
            given = await drafter.draft(keep, added)
            assert same(given, await fresh(model, sampling, context))
            context.append(given.token)
        await drafter.close()

    asyncio.run(scenario())


def test_full_acceptance_leaves_one_token_owed(model: LlamaModel) -> None:
    async def scenario() -> None:
        prompt = model.tokenizer.encode_chat(CHAT)
        drafter = drafter_of(model)
        drafts = await text_of(drafter, prompt, 4)
        # All four are accepted and the target adds a bonus token: two are owed, none is wrong.
        bonus = 1234
        given = await drafter.draft(len(prompt) + 4, [bonus])
        assert same(given, await fresh(model, SamplingParams(), [*prompt, *drafts, bonus]))
        await drafter.close()

    asyncio.run(scenario())


def test_a_draft_may_be_asked_for_twice(model: LlamaModel) -> None:
    async def scenario() -> None:
        prompt = model.tokenizer.encode_chat(CHAT)
        drafter = drafter_of(model)
        first = await drafter.draft(0, prompt)
        assert same(await drafter.draft(len(prompt), []), first)
        await drafter.close()

    asyncio.run(scenario())


def test_a_second_conversation_keeps_the_cache_of_a_common_prefix(model: LlamaModel) -> None:
    async def scenario() -> None:
        prompt = model.tokenizer.encode_chat(CHAT)
        drafter = drafter_of(model)
        answer = await drafter.draft(0, prompt)
        longer = [*prompt, answer.token, 17, 18]
        assert await drafter.begin(SAMPLED, longer) == len(prompt) + 1
        assert await drafter.begin(SAMPLED, prompt[:5]) == 5
        keep = await drafter.begin(SAMPLED, [*prompt[:10], 7, 7])
        assert keep == 10
        given = await drafter.draft(keep, [7, 7])
        assert same(given, await fresh(model, SAMPLED, [*prompt[:10], 7, 7]))
        await drafter.close()

    asyncio.run(scenario())


def test_sampled_drafts_are_a_function_of_the_seed(model: LlamaModel) -> None:
    async def text(seed: int) -> list[int]:
        prompt = model.tokenizer.encode_chat(CHAT)
        drafter = drafter_of(model)
        await drafter.begin(SamplingParams(temperature=1.0, seed=seed), prompt)
        tokens = await text_of(drafter, prompt, 12)
        await drafter.close()
        return tokens

    assert asyncio.run(text(1)) == asyncio.run(text(1))
    assert asyncio.run(text(1)) != asyncio.run(text(2))


def test_cancelled_drafts_lose_nothing_but_their_proposals(model: LlamaModel) -> None:
    """Cancelled before their first step, while waiting for the thread, and while decoding."""

    async def scenario() -> None:
        rng = random.Random(3)
        context = model.tokenizer.encode_chat(CHAT)
        drafter = drafter_of(model, batch=8)
        context.append((await drafter.draft(0, context)).token)
        for _ in range(8):
            for _ in range(rng.randint(1, 3)):
                keep, added = rng.randint(1, min(60, len(context))), [rng.randrange(49152)] * 30
                call = asyncio.create_task(drafter.draft(keep, added))
                if started := rng.random() < 0.8:
                    await asyncio.sleep(0)
                    context[keep:] = added
                if started and rng.random() < 0.5:  # long enough to decode some of the batches
                    await asyncio.sleep(rng.random() * 0.1)
                call.cancel()
                await asyncio.wait([call])
                if not call.cancelled():
                    context.append(call.result().token)
            keep = rng.choice([len(context), rng.randint(1, len(context))])
            given = await drafter.draft(keep, [5])
            context[keep:] = [5]
            assert same(given, await fresh(model, SamplingParams(), context))
            context.append(given.token)
        await drafter.close()

    asyncio.run(scenario())


def test_a_cancelled_prompt_is_given_up_between_batches(model: LlamaModel) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        drafter = drafter_of(model, batch=8, context=1024)
        start = loop.time()
        await drafter.draft(0, [100] * 256)
        whole = loop.time() - start
        call = asyncio.create_task(drafter.draft(0, [101] * 1000))
        await asyncio.sleep(0)
        call.cancel()
        start = loop.time()
        await drafter.draft(0, [102] * 8)
        assert loop.time() - start < whole
        await drafter.close()

    asyncio.run(scenario())


def test_a_closed_client_gives_the_models_memory_back() -> None:
    client = AsyncEdgeClient.from_model("127.0.0.1:1", demo_model_path(), threads=1, context=64)
    assert client.tokenizer.encode("Hello")
    asyncio.run(client.close())
    with pytest.raises(InternalError, match="is closed"):
        client.tokenizer.encode("Hello")
