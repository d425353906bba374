"""What a request may ask for beside a prompt, from the SDK to the target and back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from engine_bench import MODEL as ENGINES
from engine_bench import Verifier, go, most, opening
from virtual_client import MODEL, PROMPT, TOKENIZER, read, serving

from cloud_verifier.judge_reference import logprobs_of
from draftwire.errors import InvalidRequest
from draftwire.noise import derive_seed
from draftwire.testing.clock import run_virtual
from draftwire.testing.table import TableModel
from draftwire.types import Draft, FinishReason, SamplingParams, StopRules, Verdict, VerifyMode
from edge_client.results import Summary

FLAT = TableModel(vocabulary_size=320, states=32, sharpness=1.0)  # repeats itself, and never ends


PARAMETERS: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.3},
    "presence": {"presence_penalty": 2.0},
    "frequency": {"frequency_penalty": 1.0},
    "bias": {"logit_bias": {7: 60.0}},
    "length": {"min_tokens": 50},
}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("options", PARAMETERS.values(), ids=PARAMETERS)
def test_a_parameter_changes_the_text_and_drafting_does_not(
    options: dict[str, Any], temperature: float
) -> None:
    model = MODEL if "min_tokens" in options else FLAT
    common = {"temperature": temperature, "seed": 5, "model": model}
    split, alone = (read(num_draft_tokens=k, **common, **options) for k in (4, 0))
    assert split.token_ids == alone.token_ids
    assert split.token_ids != read(**common).token_ids


def test_the_device_drafts_by_the_same_parameters() -> None:
    """With the target's own model every draft holds, whatever changes its logits."""
    for options in PARAMETERS.values():

        async def run(options: dict[str, Any] = options) -> Summary:
            async with serving(draft_model=MODEL) as (client, _):
                stream = client.generate(
                    PROMPT, max_tokens=50, num_draft_tokens=4, temperature=0.9, seed=1, **options
                )
                await stream.read()
                return stream.summary

        assert run_virtual(run()).alpha == 1


def test_no_end_token_comes_before_min_tokens() -> None:
    free = read(num_draft_tokens=4)
    assert free.finish_reason is FinishReason.STOP
    held = read(min_tokens=len(free.token_ids) + 3)
    assert held.token_ids[: len(free.token_ids) - 1] == free.token_ids[:-1]
    assert 0 not in held.token_ids[: len(free.token_ids) + 3]


@pytest.mark.parametrize("k", [0, 4])
def test_logprobs_are_those_of_the_token_they_come_with(k: int) -> None:
    summary = read(
        num_draft_tokens=k, top_logprobs=3, temperature=0.8, seed=2, presence_penalty=1.0
    )
    state = MODEL.state_of(TOKENIZER.encode(PROMPT))
    assert len(summary.logprobs) == len(summary.token_ids)
    for token, told in zip(summary.token_ids, summary.logprobs, strict=True):
        expected = logprobs_of(MODEL.logits(state), token, 4)
        assert told.logprob == pytest.approx(expected.logprob, abs=1e-5)
        assert list(told.top_tokens) == list(expected.top_tokens)
        state = MODEL.extend(state, token)


def test_without_top_logprobs_there_is_the_tokens_own() -> None:
    told = read(logprobs=True, max_tokens=3).logprobs
    assert len(told) == 3
    assert all(one.logprob < 0 and not one.top_tokens for one in told)
    assert read(max_tokens=3).logprobs == ()


def test_logprobs_missed_by_a_cut_are_replayed() -> None:
    verifier = Verifier()
    stream = verifier.begin(opening(stop=most(9), logprobs=2), go(credit=6))
    verifier.settle()
    told = [one for verdict in verifier.verdicts(stream) for one in verdict.logprobs]
    assert len(told) == 6
    prompt = (5, 6, 7, *verifier.text(stream)[:2])
    again = verifier.begin(opening(1, prompt, attempt=2, start=3, stop=most(9), logprobs=2))
    verifier.settle()
    (replay,) = verifier.verdicts(again)
    assert list(replay.logprobs) == told[2:]


def test_logprobs_that_are_not_known_any_more_are_computed_again() -> None:
    verifier = Verifier()
    whole = verifier.begin(opening(stop=most(9), logprobs=1), go(credit=6))
    verifier.settle()
    text = verifier.text(whole)
    later = verifier.begin(
        opening(1, (5, 6, 7, *text[:4]), attempt=2, generation=2, start=3, logprobs=1)
    )
    verifier.settle()
    assert verifier.verdicts(later) == []
    earlier = verifier.begin(
        opening(1, (5, 6, 7, *text[:1]), attempt=3, generation=2, start=3, logprobs=1),
        Draft(base=4, epoch=0, credit=5),
    )
    verifier.settle()
    assert verifier.text(earlier) == text[1:6]
    for verdict in verifier.verdicts(earlier):
        assert len(verdict.logprobs) == len(verdict.next)


def test_a_request_alone_and_among_seven_others_gets_the_same() -> None:
    mixed = [
        {},
        {"sampling": SamplingParams(temperature=1.0, seed=1)},
        {"sampling": SamplingParams(temperature=0.7, seed=2, repetition_penalty=1.2)},
        {"sampling": SamplingParams(frequency_penalty=1.0), "logprobs": 3},
        {"sampling": SamplingParams(temperature=2.0, top_k=5, logit_bias={3: 4.0}, seed=3)},
        {"sampling": SamplingParams(temperature=0.9, top_p=0.7, seed=4), "logprobs": 1},
        {
            "sampling": SamplingParams(temperature=1.5, presence_penalty=1.0, seed=5),
            "stop": StopRules(max_tokens=12, min_tokens=12, strings=(" the", "of")),
            "mode": VerifyMode.REJECTION,
        },
        {"sampling": SamplingParams(temperature=1.5, min_p=0.1), "mode": VerifyMode.TYPICAL},
    ]
    frames = [
        (
            opening(name, (5, 6, 7 + name), **({"stop": most(12)} | options)),
            Draft(base=3, epoch=0, tokens=(1, 2, 3)[: name % 4], credit=20),
        )
        for name, options in enumerate(mixed)
    ]

    def answers(verifier: Verifier, *chosen: int) -> list[list[tuple[Any, ...]]]:
        streams = [verifier.begin(*frames[name]) for name in chosen]
        verifier.settle()
        return [
            [
                (one.base, one.accepted, one.next, one.logprobs)
                for one in verifier.heard[stream]
                if isinstance(one, Verdict)
            ]
            for stream in streams
        ]

    together = Verifier()
    assert answers(together, *range(8)) == [answers(Verifier(), name)[0] for name in range(8)]
    assert max(len(rows) for rows in together.target.passes) == 8
    assert ENGINES.vocabulary_size == 50


# ------------------------------------------------------------------ modes


@pytest.mark.parametrize("mode", ["match", "rejection", "typical"])
def test_the_summary_says_how_drafts_were_judged_and_whether_that_is_lossy(mode: str) -> None:
    summary = read(verify_mode=mode, temperature=0.9, seed=3, max_tokens=20)
    assert summary.verify_mode is VerifyMode(mode)
    assert summary.lossy == (mode == "typical")


@pytest.mark.parametrize("mode", VerifyMode)
def test_greedy_text_is_the_targets_own_in_every_mode(mode: VerifyMode) -> None:
    assert read(verify_mode=mode).token_ids == read(num_draft_tokens=0).token_ids


def test_a_rejection_text_is_told_by_its_seed_where_drafts_are() -> None:
    options = {"verify_mode": "rejection", "temperature": 0.9, "max_tokens": 20, "model": FLAT}
    assert read(seed=3, **options).token_ids == read(seed=3, **options).token_ids
    assert read(seed=3, **options).token_ids != read(seed=4, **options).token_ids


def test_a_mode_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match="'best', not one of match, rejection, typical"):
        read(verify_mode="best")


# ------------------------------------------------------------------ several outputs


def test_several_outputs_have_seeds_of_their_own_and_the_first_is_the_requests() -> None:
    async def run() -> list[Summary]:
        async with serving() as (client, _):
            streams = client.samples(3, PROMPT, temperature=1.0, seed=9, max_tokens=8)
            for stream in reversed(streams):  # whichever is read first goes ahead
                await stream.read()
            return [stream.summary for stream in streams]

    summaries = run_virtual(run())
    assert [one.seed for one in summaries] == [derive_seed(9, index) for index in range(3)]
    assert summaries[0].token_ids == read(temperature=1.0, seed=9, max_tokens=8).token_ids
    assert len({one.token_ids for one in summaries}) == 3
    again = read(temperature=1.0, seed=summaries[2].seed, max_tokens=8)
    assert again.token_ids == summaries[2].token_ids


def test_several_outputs_at_once_read_their_prompt_once() -> None:
    prompt = PROMPT * 8

    async def run() -> list[Summary]:
        async with serving(drafters=4) as (client, _):
            streams = client.samples(4, prompt, temperature=1.0, max_tokens=4)
            await asyncio.gather(*(stream.read() for stream in streams))
            return [stream.summary for stream in streams]

    cached = sorted(one.usage.cached_tokens for one in run_virtual(run()))
    whole = (len(TOKENIZER.encode(prompt)) - 1) // 16 * 16
    assert whole > 0
    assert cached == [0, whole, whole, whole]


def test_the_others_go_on_when_the_first_output_is_given_up() -> None:
    async def run() -> None:
        async with serving(drafters=2) as (client, _):
            first, second = client.samples(2, PROMPT, max_tokens=4)
            leader = asyncio.create_task(anext(first))
            await asyncio.sleep(0.001)
            follower = asyncio.create_task(second.read())
            await asyncio.sleep(0.001)
            leader.cancel()
            await follower
            assert second.summary.usage.completion_tokens == 4

    run_virtual(run())


def test_no_outputs_are_no_request() -> None:
    async def run() -> None:
        async with serving() as (client, _):
            with pytest.raises(InvalidRequest, match="n is 0"):
                client.samples(0, PROMPT)

    run_virtual(run())


def test_derived_seeds_differ_and_are_seeds() -> None:
    seeds = {derive_seed(seed, index) for seed in (0, 1, 2**64 - 1) for index in range(100)}
    assert len(seeds) == 300
    assert all(0 <= seed < 2**64 for seed in seeds)
