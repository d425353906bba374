"""The demo pair end to end: draft model, socket, verifier process. Each text is the target's own.

What the target says alone comes from transformers as it ships (`bench._reference`).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("llama_cpp")

from bench import identity, wire
from bench._comparison import Case, Comparison, run_links
from bench._prompts import PROMPTS
from bench._reference import Reference
from bench._tap import Tap
from draftwire.testing.demo import demo_model_path
from draftwire.types import FinishReason, SamplingParams, common_prefix
from edge_client.client import AsyncEdgeClient
from edge_client.drafter import Drafter
from edge_client.drafters.llama import LlamaDrafter, LlamaModel
from edge_client.drafters.perturbed import (
    NoisyDrafter,
    RandomDrafter,
    WrongDrafter,
)
from edge_client.results import Summary
from edge_client.transport import GrpcTransport, Transport

pytestmark = [pytest.mark.models, pytest.mark.slow]

GREEDY, SAMPLED = SamplingParams(), SamplingParams(temperature=0.8, seed=5)


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference(str(demo_model_path()))


def client_of(
    verifier: str | Transport, model: LlamaModel, *, drafters: int = 1
) -> AsyncEdgeClient:
    made = [LlamaDrafter(model, threads=1, context=1024) for _ in range(drafters)]
    return AsyncEdgeClient(verifier, model.tokenizer, made)


async def generate(client: AsyncEdgeClient, prompt: Sequence[int], **options: Any) -> Summary:
    stream = client.generate(prompt, **options)
    await stream.read()
    return stream.summary


def options_of(sampling: SamplingParams) -> dict[str, Any]:
    return {"temperature": sampling.temperature, "seed": sampling.seed}


def alone(
    reference: Reference, prompt: Sequence[int], count: int, sampling: SamplingParams = GREEDY
) -> tuple[int, ...]:
    """What the target says after a prompt, up to an end of its own."""
    return tuple(best.first for best in reference.text(prompt, sampling, count, ends=True))


# ------------------------------------------------------------------ identity


def test_split_text_is_the_target_s_own(
    runner: asyncio.Runner,
    model: LlamaModel,
    reference: Reference,
    verifier: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cases = identity.quick_grid()
    comparison = Comparison(reference, model, tokens=identity.QUICK_TOKENS)
    comparison.prepare(cases)
    runner.run(run_links(comparison, verifier, cases, at_once=4))
    report = comparison.report
    if report.differences:
        with capsys.disabled():  # an excused tie is never hidden
            sys.stdout.write("".join(f"\n{found}" for found in report.differences))
    assert report.failures == []
    assert report.runs == len(cases)
    assert report.sessions_per_pass > 1
    assert report.mixed_k > 0


def test_only_a_true_tie_is_excused(model: LlamaModel, reference: Reference) -> None:
    case = Case(PROMPTS[0], GREEDY, 3, 0.0)
    prompt = case.prompt.tokens(model.tokenizer)
    text = reference.text(prompt, GREEDY, 12, ends=False)
    fork = min(range(2, 10), key=lambda i: text[i].margin)
    other = [*(best.first for best in text[:fork]), text[fork].second]
    rest = reference.text([*prompt, *other], GREEDY, 12 - len(other), ends=False)
    other += [best.first for best in rest]
    wrong = [*other[:-1], other[-1] + 1]

    def compare(got: list[int], tie: float) -> list[tuple[int, bool]]:
        comparison = Comparison(reference, model, tokens=12, tie=tie)
        comparison.prepare([case])
        return [(found.index, found.tie) for found in comparison.compare(case, got)]

    near = text[fork].margin * 1.01
    assert compare([best.first for best in text], tie=1e-4) == []
    assert compare(other, tie=1e-4) == [(fork, False)]
    assert compare(other, tie=near) == [(fork, True)]
    assert compare(wrong, tie=near) == [(fork, True), (11, False)]
    assert compare(other[:-1], tie=near)[-1] == (11, False)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kind", ["noisy", "random", "wrong"])
def test_a_wrong_drafter_changes_nothing_but_the_speed(
    runner: asyncio.Runner,
    model: LlamaModel,
    reference: Reference,
    verifier: str,
    kind: str,
    sampling: SamplingParams,
) -> None:
    inner = LlamaDrafter(model, threads=1, context=512)
    spoilt: dict[str, Drafter] = {
        "noisy": NoisyDrafter(inner, 3.0),
        "random": RandomDrafter(inner, model.vocabulary_size),
        "wrong": WrongDrafter(inner),
    }
    prompt = PROMPTS[0].tokens(model.tokenizer)

    async def scenario() -> tuple[Summary, Summary]:
        async with AsyncEdgeClient(verifier, model.tokenizer, [spoilt[kind]]) as client:
            options = {"max_tokens": 20} | options_of(sampling)
            split = await generate(client, prompt, num_draft_tokens=3, **options)
            return split, await generate(client, prompt, num_draft_tokens=0, **options)

    split, cloud_alone = runner.run(scenario())
    assert split.token_ids == cloud_alone.token_ids == alone(reference, prompt, 20, sampling)
    assert split.text == cloud_alone.text
    assert split.usage.drafted > 0
    if kind == "noisy":
        assert 0 < split.accepted < split.usage.drafted
    else:
        assert split.accepted == split.usage.accepted == 0
        assert split.rounds == len(split.token_ids)


def test_sixteen_concurrent_sessions_are_identical_to_single_runs(
    runner: asyncio.Runner, model: LlamaModel, verifier: str
) -> None:
    samplings: list[dict[str, Any]] = [
        {},
        {"temperature": 0.8},
        {"temperature": 1.0, "top_p": 0.9},
        {"temperature": 0.6, "top_k": 40, "min_p": 0.02},
    ]
    jobs = [
        {
            "prompt": PROMPTS[i].tokens(model.tokenizer),
            "max_tokens": (4, 9, 14, 24, 32)[i % 5],
            "num_draft_tokens": (0, 1, 2, 3, 5, 8, None)[i % 7],
            "seed": i,
            **samplings[i % 4],
        }
        for i in range(16)
    ]
    tap = Tap(GrpcTransport(verifier))

    async def scenario() -> tuple[list[Summary], list[Summary]]:
        async with client_of(tap, model, drafters=16) as client:
            together = await asyncio.gather(*(generate(client, **job) for job in jobs))
            passes.extend(tap.passes)
            return together, [await generate(client, **job) for job in jobs]

    passes: list[Any] = []
    together, single = runner.run(scenario())
    assert [run.token_ids for run in together] == [run.token_ids for run in single]
    assert [run.text for run in together] == [run.text for run in single]
    assert max(len(p.sessions) for p in passes) >= 8
    assert sum(len(p.sessions) for p in passes) / len(passes) > 2


# ------------------------------------------------------------------ the wire


def test_a_token_costs_at_most_sixteen_bytes(
    runner: asyncio.Runner,
    model: LlamaModel,
    verifier: str,
    record_property: pytest.RecordProperty,
) -> None:
    cost = runner.run(wire.measure(verifier, model, wire.CHECKED, tokens=32))
    record_property("payload_bytes_per_token", cost.payload)
    record_property("rest_bytes_per_generation", (cost.rest_up, cost.rest_down))
    assert wire.fault(cost) is None
    framed = cost.drafts_up + cost.rest_up, cost.verdicts_down + cost.rest_down
    assert (cost.socket_up, cost.socket_down) > framed > (0, 0)


def test_later_turns_send_only_what_is_new(
    runner: asyncio.Runner, model: LlamaModel, reference: Reference, verifier: str
) -> None:
    questions = ["Name three colours.", "Which of them is the warmest?", "Why?"]
    tap = Tap(GrpcTransport(verifier))
    turns: list[tuple[list[int], Summary]] = []

    async def scenario() -> None:
        async with client_of(tap, model) as client:
            chat = client.chat("You answer in one sentence.")
            for question in questions:
                asked = [*chat.messages, {"role": "user", "content": question}]
                prompt = client.tokenizer.encode_chat(asked)
                stream = await chat.send(question, max_tokens=24)
                await stream.read()
                turns.append((prompt, stream.summary))

    runner.run(scenario())
    held: list[int] = []
    for opening, (prompt, answer) in zip(tap.opens, turns, strict=True):
        shared = common_prefix(held, prompt)
        assert shared == len(held)  # the template repeats an answer as it was generated
        assert opening.history.prefix_length == shared
        assert list(opening.history.tokens) == prompt[shared:]
        assert answer.usage.prompt_tokens == len(prompt)
        # The last token is owed to the KV, which is kept by whole blocks of 16.
        assert answer.usage.cached_tokens >= shared - 16
        assert answer.bytes.other_up < 160 + 3 * (len(prompt) - shared)
        assert answer.token_ids == alone(reference, prompt, 24)
        held = [*prompt, *answer.token_ids]


# ------------------------------------------------------------------ ending early


@pytest.mark.parametrize("num_draft_tokens", [0, 4])
def test_after_a_cancel_the_session_goes_on_exactly(
    runner: asyncio.Runner,
    model: LlamaModel,
    reference: Reference,
    verifier: str,
    num_draft_tokens: int,
) -> None:
    first, second = (PROMPTS[i].tokens(model.tokenizer) for i in (0, 2))

    async def scenario() -> tuple[Summary, Summary, Summary]:
        async with client_of(verifier, model) as client:
            session = await client.session()
            options: dict[str, Any] = {"session": session, "num_draft_tokens": num_draft_tokens}
            stream = client.generate(first, max_tokens=400, **options)
            seen = 0
            async for delta in stream:
                seen += len(delta.tokens)
                if seen >= 6:
                    stream.cancel()
            cancelled = stream.summary
            onward = [*first, *cancelled.token_ids]
            going_on = await generate(client, onward, max_tokens=12, **options)
            async with client.generate(first, max_tokens=400, **options) as left:
                await anext(left)  # and walk away
            return cancelled, going_on, await generate(client, second, max_tokens=12, **options)

    cancelled, going_on, other = runner.run(scenario())
    assert cancelled.finish_reason is FinishReason.CANCELLED
    whole = alone(reference, first, 48)
    end = len(cancelled.token_ids)
    assert 6 <= end <= 36
    assert cancelled.token_ids == whole[:end]
    assert going_on.token_ids == whole[end : end + 12]
    assert other.token_ids == alone(reference, second, 12)
