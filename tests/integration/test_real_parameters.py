"""Parameters on the demo pair, through gRPC: what a request gets is what it gets by itself.

The target is float32, so that passes of other shapes move log-probabilities by 1e-4 or so.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("llama_cpp")

from bench._prompts import PROMPTS
from draftwire.types import FinishReason, StopRules
from edge_client.branch import Commit, Origin
from edge_client.client import AsyncEdgeClient
from edge_client.drafter import Tokenizer
from edge_client.drafters.llama import LlamaDrafter, LlamaModel
from edge_client.output import Output
from edge_client.results import Summary

pytestmark = [pytest.mark.models, pytest.mark.slow]

MIXED: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 2**64 - 1, "logprobs": True},
    {"temperature": 0.9},  # unseeded: the summary tells the seed it got
    {"repetition_penalty": 1.3, "frequency_penalty": 0.7, "top_logprobs": 3},
    {"temperature": 0.8, "seed": 3, "stop": [". ", ","], "min_tokens": 5, "top_logprobs": 1},
    {"temperature": 1.1, "top_p": 0.9, "logit_bias": {28: -100.0, 30: 3.0}, "logprobs": True},
    {"temperature": 0.7, "top_k": 40, "min_p": 0.02, "prompt_lookup": True},
    {"presence_penalty": 2.0, "prediction": "The answer is, of course", "top_logprobs": 2},
]


async def read(client: AsyncEdgeClient, prompt: list[int], **options: Any) -> Summary:
    stream = client.generate(prompt, max_tokens=16, **options)
    text = await stream.read()
    assert text == stream.summary.text
    return stream.summary


def assert_same(split: Summary, alone: Summary) -> None:
    assert split.token_ids == alone.token_ids
    assert split.text == alone.text
    assert split.finish_reason is alone.finish_reason
    assert split.usage.completion_tokens == len(alone.token_ids)
    assert len(split.logprobs) == len(alone.logprobs)
    for ours, theirs in zip(split.logprobs, alone.logprobs, strict=True):
        assert ours.logprob == pytest.approx(theirs.logprob, abs=2e-3)
        assert list(ours.top_logprobs) == pytest.approx(list(theirs.top_logprobs), abs=2e-3)


def test_eight_mixed_requests_at_once_get_what_each_gets_alone_and_without_drafts(
    model: LlamaModel, verifier: str
) -> None:
    prompts = [PROMPTS[k].tokens(model.tokenizer) for k in (0, 2, 3, 4, 6, 7, 12, 16)]

    async def run() -> tuple[list[Summary], list[Summary]]:
        drafters = [LlamaDrafter(model, threads=1, context=1024) for _ in MIXED]
        async with AsyncEdgeClient(verifier, model.tokenizer, drafters) as client:
            together = await asyncio.gather(
                *(
                    read(client, prompt, num_draft_tokens=(4, 2, 5, 3, None, 1, 8, 4)[k], **options)
                    for k, (prompt, options) in enumerate(zip(prompts, MIXED, strict=True))
                )
            )
            alone = [
                await read(client, prompt, num_draft_tokens=0, **{"seed": one.seed, **options})
                for prompt, options, one in zip(prompts, MIXED, together, strict=True)
            ]
            return together, alone

    together, alone = asyncio.run(run())
    for split, single in zip(together, alone, strict=True):
        assert_same(split, single)
    assert sum(one.accepted for one in together) > 0
    assert together[4].finish_reason is FinishReason.STOP
    assert FinishReason.LENGTH in {one.finish_reason for one in together}


CORPUS = [
    "🚀👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 🇫🇷",
    "日本語、한국어、中文、𠮷野家",
    "e\u0301 a\u0323\u0302 नि क्षि ก็",
]


@pytest.mark.parametrize("text", CORPUS)
@pytest.mark.parametrize("stop", [(), ("never there",), ("野x", "🇫🇷x", "ก็x")])
def test_deltas_joined_are_the_text_at_every_accept_boundary_of_real_tokens(
    model: LlamaModel, text: str, stop: tuple[str, ...]
) -> None:
    tokenizer: Tokenizer = model.tokenizer
    commits = [Commit(token, Origin.ACCEPTED) for token in tokenizer.encode(text)]
    assert len(commits) > len(text) // 2
    for first in range(len(commits) + 1):
        for second in range(first, len(commits) + 1):
            output, given = Output(tokenizer, StopRules(strings=stop)), ""
            for part in (commits[:first], commits[first:second], commits[second:]):
                given += output.take(part, ()).text
                assert "\ufffd" not in given
            given += output.end(len(commits)).text
            assert given == output.text == text
