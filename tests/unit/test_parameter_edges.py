"""Parameters where they are easiest to get wrong: over cuts, batches, limits and shared KV."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from engine_bench import PROMPT as TOKENS
from engine_bench import Verifier, go, opening
from virtual_client import PROMPT, TOKENIZER, read, serving

from cloud_verifier.engine import Detached
from draftwire.testing.clock import run_virtual
from draftwire.testing.table import TableModel, table_pieces
from draftwire.types import Draft, FinishReason, SamplingParams, StopRules
from edge_client.results import Summary

TABLE_PIECES = table_pieces(50)
FLAT = TableModel(vocabulary_size=320, states=32, sharpness=1.0)  # repeats itself, and never ends
SAMPLINGS = {
    "penalties": SamplingParams(
        repetition_penalty=1.5, frequency_penalty=0.8, presence_penalty=-1.0, logit_bias={4: 6.0}
    ),
    "sampled": SamplingParams(
        temperature=1.2, top_k=30, seed=2**64 - 1, repetition_penalty=0.6, frequency_penalty=2.0
    ),
}


# ------------------------------------------------------------------ over a cut


def run(verifier: Verifier, sampling: SamplingParams, stop: StopRules) -> tuple[list[int], int]:
    """A whole text and its retained length, as the cloud writes it alone."""
    stream = verifier.begin(opening(sampling=sampling, stop=stop), go())
    verifier.settle()
    return verifier.text(stream), verifier.end(stream).length


@pytest.mark.parametrize("lost", [False, True], ids=["session kept", "session lost"])
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_after_a_cut_anywhere_the_text_and_its_end_are_the_same(
    sampling: SamplingParams, lost: bool
) -> None:
    """With end tokens held back, a stop string that the cut may part, and wrong drafts out."""
    free, _ = run(Verifier(), sampling, StopRules(max_tokens=12, min_tokens=12))
    pieces = [TABLE_PIECES[token] for token in free]
    pairs = [(a + b).decode(errors="ignore") for a, b in pairwise(pieces[5:])]
    stop = StopRules(max_tokens=12, min_tokens=5, strings=(max(pairs, key=len),))
    whole, length = run(Verifier(), sampling, stop)
    assert whole == free[: len(whole)]
    assert length - 3 < len(whole) < 12
    for cut in range(len(whole)):
        verifier = Verifier()
        first = verifier.begin(opening(sampling=sampling, stop=stop), go(credit=cut))
        verifier.settle()
        assert verifier.text(first) == whole[:cut]
        wrong = tuple((token + 1) % 50 for token in whole[cut : cut + 2])
        verifier.send(first, Draft(base=3 + cut, epoch=0, tokens=wrong), Detached())
        verifier.settle()
        verifier = Verifier() if lost else verifier
        history = (*TOKENS, *whole[:cut])
        drafts = whole[cut : cut + 3]
        second = verifier.begin(
            opening(prompt=history, attempt=2, start=3, sampling=sampling, stop=stop),
            Draft(base=len(history), epoch=0, tokens=drafts, credit=60),
        )
        verifier.settle()
        assert verifier.text(second, drafts) == whole[cut:]
        assert verifier.end(second).length == length
        assert verifier.end(second).reason is FinishReason.STOP


def test_penalties_count_a_prompt_whose_kv_was_there_already() -> None:
    prompt = tuple(1 + at % 7 for at in range(40))
    sampling = SamplingParams(repetition_penalty=3.0, temperature=1.0, seed=3)
    verifier = Verifier()
    texts = []
    for name in (1, 2):
        stream = verifier.begin(
            opening(name, prompt, sampling=sampling, stop=StopRules(max_tokens=20)), go(prompt)
        )
        verifier.settle()
        texts.append(verifier.text(stream))
    assert verifier.cached(stream) >= 36
    assert texts[0] == texts[1]


# ------------------------------------------------------------------ stop strings and min_tokens


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_a_stop_string_parted_by_drafts_counts_from_min_tokens_on(k: int) -> None:
    ids = read(model=FLAT, max_tokens=14, num_draft_tokens=0).token_ids
    pieces = [TOKENIZER.piece(token) for token in ids]
    stop = b"".join(pieces[6:9])[1:-1].decode(errors="replace").strip("\ufffd")
    for least in range(5, 11):
        after = b"".join(pieces[least:])
        found = after.find(stop.encode())
        text = b"".join(pieces[:least]) + (after[:found] if found >= 0 else after)
        summary = read(model=FLAT, max_tokens=14, num_draft_tokens=k, stop=stop, min_tokens=least)
        assert summary.text == text.decode(errors="replace")
        assert summary.token_ids == ids[: len(summary.token_ids)]
        ends = FinishReason.STOP if found >= 0 else FinishReason.LENGTH
        assert summary.finish_reason is ends


# ------------------------------------------------------------------ limits


EXTREMES: dict[str, dict[str, Any]] = {
    "the least temperature": {"temperature": 5e-324},
    "a temperature below float32": {"temperature": 1e-45},
    "the greatest temperature": {"temperature": 100.0},
    "the least top_p": {"temperature": 1.0, "top_p": 5e-324},
    "the greatest min_p": {"temperature": 1.0, "min_p": 1.0},
    "a top_k beyond the vocabulary": {"temperature": 1.0, "top_k": 2**31 - 1},
    "nearly all removed": {"temperature": 1.0, "logit_bias": dict.fromkeys(range(300), -100.0)},
    "all alike": {"logit_bias": dict.fromkeys(range(320), -100.0)},
    "all penalties at their most": {
        "temperature": 1.0,
        "repetition_penalty": 100.0,
        "presence_penalty": 2.0,
        "frequency_penalty": 2.0,
        "logit_bias": {3: 100.0},
    },
    "and at their least": {
        "temperature": 1.0,
        "repetition_penalty": 0.01,
        "presence_penalty": -2.0,
        "frequency_penalty": -2.0,
    },
}


@pytest.mark.parametrize("seed", [0, 2**64 - 1])
@pytest.mark.parametrize("options", EXTREMES.values(), ids=EXTREMES)
def test_at_the_limits_of_its_parameters_a_text_is_the_targets_own(
    options: dict[str, Any], seed: int
) -> None:
    common = {"model": FLAT, "max_tokens": 12, "seed": seed, "top_logprobs": 20, **options}
    alone = read(num_draft_tokens=0, **common)
    split = read(num_draft_tokens=4, **common)
    assert split.token_ids == alone.token_ids
    assert split.logprobs == alone.logprobs
    assert len(alone.token_ids) == 12
    for mode in ("rejection", "typical"):
        assert len(read(num_draft_tokens=4, verify_mode=mode, **common).token_ids) == 12


# ------------------------------------------------------------------ together and alone


MIXED: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 1},
    {"temperature": 0.9},  # unseeded: the summary tells the seed it got
    {"repetition_penalty": 1.3, "frequency_penalty": 0.7, "top_logprobs": 3},
    {"temperature": 0.8, "stop": [" the", "of"], "min_tokens": 5},
    {"temperature": 1.1, "top_p": 0.9, "logit_bias": {7: 4.0, 9: -100.0}, "logprobs": True},
    {"temperature": 0.7, "top_k": 40, "min_p": 0.02, "prompt_lookup": True},
    {"presence_penalty": 2.0, "stop_token_ids": [7], "prediction": [7, 8, 9] * 20},
]


def test_eight_mixed_requests_at_once_get_what_each_gets_alone() -> None:
    async def together() -> list[Summary]:
        async with serving(FLAT, drafters=8) as (client, _):
            streams = [
                client.generate(PROMPT, max_tokens=24, num_draft_tokens=k % 6, **options)
                for k, options in enumerate(MIXED)
            ]
            await asyncio.gather(*(stream.read() for stream in streams))
            return [stream.summary for stream in streams]

    for options, summary in zip(MIXED, run_virtual(together()), strict=True):
        again = {"seed": summary.seed, **options}
        for k in (0, 3):
            alone = read(model=FLAT, max_tokens=24, num_draft_tokens=k, **again)
            assert alone.token_ids == summary.token_ids
            assert alone.text == summary.text
            assert alone.logprobs == summary.logprobs
            assert alone.finish_reason is summary.finish_reason


def test_cancelling_one_of_several_outputs_leaves_the_others_theirs() -> None:
    options: dict[str, Any] = {"temperature": 1.0, "presence_penalty": 0.5, "max_tokens": 20}

    async def run() -> list[Summary]:
        async with serving(FLAT, drafters=2) as (client, engine):
            streams = client.samples(3, PROMPT, seed=4, **options)

            async def second() -> None:
                async for _ in streams[1]:
                    streams[1].cancel()

            await asyncio.gather(streams[0].read(), second(), streams[2].read())
            assert not engine.active
            return [stream.summary for stream in streams]

    summaries = run_virtual(run())
    assert summaries[1].finish_reason is FinishReason.CANCELLED
    for one in summaries:
        whole = read(model=FLAT, seed=one.seed, **options).token_ids
        assert one.token_ids == whole[: len(one.token_ids)]
    assert [len(one.token_ids) for one in (summaries[0], summaries[2])] == [20, 20]
