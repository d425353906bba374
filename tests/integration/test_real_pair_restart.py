"""The demo pair when its verifier dies, comes back or is told to stop, in mid-generation."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("llama_cpp")

from bench._prompts import PROMPTS
from bench._reference import Reference
from draftwire.errors import Draining
from draftwire.testing.demo import demo_model_path
from draftwire.types import SamplingParams
from edge_client.client import AsyncEdgeClient
from edge_client.drafters.llama import LlamaDrafter, LlamaModel
from edge_client.results import Summary
from edge_client.session import RetryPolicy
from edge_client.verifier_process import VerifierProcess

pytestmark = [pytest.mark.models, pytest.mark.slow]

SERVE = ("--model", str(demo_model_path()), "--threads", "1", "--kv-tokens", "4096")
PATIENT = RetryPolicy(longest_wait_s=1.0, give_up_after_s=400.0)


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference(str(demo_model_path()))


def client_of(
    verifier: str, model: LlamaModel, *, drafters: int = 1, retry: RetryPolicy = PATIENT
) -> AsyncEdgeClient:
    made = [LlamaDrafter(model, threads=1, context=1024) for _ in range(drafters)]
    return AsyncEdgeClient(verifier, model.tokenizer, made, retry=retry)


def test_a_killed_verifier_that_comes_back_leaves_no_trace_in_the_text(
    runner: asyncio.Runner, model: LlamaModel, reference: Reference
) -> None:
    sampled = SamplingParams(temperature=0.8, seed=9)
    jobs = [(0, SamplingParams(), 0), (3, SamplingParams(), 4), (16, sampled, 4)]
    prompts = [PROMPTS[which].tokens(model.tokenizer) for which, _, _ in jobs]

    async def scenario(stack: contextlib.ExitStack) -> list[Summary]:
        first = stack.enter_context(VerifierProcess(SERVE))
        again = VerifierProcess([*SERVE, "--listen", first.address])
        under_way = [asyncio.Event() for _ in jobs]

        async def read(client: AsyncEdgeClient, which: int) -> Summary:
            _, sampling, num_draft_tokens = jobs[which]
            stream = client.generate(
                prompts[which],
                max_tokens=48,
                temperature=sampling.temperature,
                seed=sampling.seed,
                ignore_eos=True,
                num_draft_tokens=num_draft_tokens,
            )
            async for delta in stream:
                if delta.tokens:
                    under_way[which].set()
            return stream.summary

        async with client_of(first.address, model, drafters=len(jobs)) as client:
            reading = asyncio.gather(*(read(client, which) for which in range(len(jobs))))
            for event in under_way:
                await event.wait()
            first.process.kill()
            await asyncio.to_thread(stack.enter_context, again)
            return await reading

    with contextlib.ExitStack() as stack:
        summaries = runner.run(scenario(stack))
    for prompt, (_, sampling, _), summary in zip(prompts, jobs, summaries, strict=True):
        text = reference.text(prompt, sampling, 48, ends=False)
        assert list(summary.token_ids) == [best.first for best in text]
        assert summary.streams > 1


@pytest.mark.parametrize(
    ("grace_s", "max_tokens"), [(120, 24), (1, 3000)], ids=["finishes", "handed back"]
)
def test_sigterm_lets_a_generation_finish_or_hands_it_back(
    runner: asyncio.Runner,
    model: LlamaModel,
    reference: Reference,
    grace_s: int,
    max_tokens: int,
) -> None:
    prompt = PROMPTS[0].tokens(model.tokenizer)

    async def scenario(verifier: VerifierProcess) -> tuple[list[int], Draining | None]:
        tokens: list[int] = []
        stopping: Any = None
        hasty = RetryPolicy(give_up_after_s=0.0)
        async with client_of(verifier.address, model, retry=hasty) as client:
            stream = client.generate(
                prompt, max_tokens=max_tokens, ignore_eos=True, num_draft_tokens=2
            )
            try:
                async for delta in stream:
                    tokens += [token.id for token in delta.tokens]
                    if stopping is None:
                        stopping = asyncio.create_task(asyncio.to_thread(verifier.stop, 300.0))
            except Draining as error:
                return tokens, error
            finally:
                assert await stopping == 0
        return tokens, None

    with VerifierProcess([*SERVE, "--grace", str(grace_s)]) as verifier:
        tokens, error = runner.run(scenario(verifier))
    if max_tokens == 24:
        assert error is None
        assert len(tokens) == max_tokens
    else:
        assert error is not None
        assert error.retryable
    text = reference.text(prompt, SamplingParams(), 24, ends=False)
    assert tokens[:24] == [best.first for best in text][: len(tokens)]
