"""Chat completions through the official client: whole or streamed, the text is the target's own."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("openai")

from endpoint_world import MODEL, TOKENIZER, World, alone, chat_prompt, mostly_right, text_of, world
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk

ASK: Any = [{"role": "user", "content": "the cat"}]
IDS = alone(chat_prompt("the cat"), 48)
TEXT = text_of(IDS)
GREEDY: dict[str, Any] = {"model": "table", "messages": ASK, "max_tokens": 48, "temperature": 0}


def whole(openai: OpenAI, **options: Any) -> ChatCompletion:
    answer = openai.chat.completions.create(**GREEDY | options)
    assert isinstance(answer, ChatCompletion)
    return answer


def streamed(openai: OpenAI, **options: Any) -> list[ChatCompletionChunk]:
    return list(openai.chat.completions.create(**GREEDY | options, stream=True))


def texts(chunks: list[ChatCompletionChunk], index: int = 0) -> str:
    choices = [one for chunk in chunks for one in chunk.choices if one.index == index]
    return "".join(one.delta.content or "" for one in choices)


# ------------------------------------------------------------------ text


def test_an_answer_is_the_target_s_own_text(openai: OpenAI) -> None:
    answer = whole(openai)
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].logprobs is None
    assert (answer.object, answer.model) == ("chat.completion", "table")
    assert answer.id.startswith("chatcmpl-")
    assert answer.system_fingerprint == f"fp_{MODEL.digest.hex()[:12]}"


def test_chunks_joined_are_the_same_text(openai: OpenAI) -> None:
    chunks = streamed(openai)
    assert texts(chunks) == TEXT
    assert len(chunks) > 10
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + [
        "length"
    ]
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)


def test_the_asynchronous_client_gets_the_same(served: World) -> None:
    async def ask() -> tuple[str | None, str]:
        url = f"{served.url}/v1"
        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            answer = await client.chat.completions.create(**GREEDY)
            stream = await client.chat.completions.create(**GREEDY, stream=True)
            parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
        return answer.choices[0].message.content, "".join(parts)

    assert asyncio.run(ask()) == (TEXT, TEXT)


def test_roles_parts_and_earlier_answers_reach_the_template(openai: OpenAI) -> None:
    first = whole(openai, max_tokens=5).choices[0].message
    messages = [
        {"role": "developer", "content": "be brief"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "the"}, {"type": "text", "text": " cat"}],
        },
        first.model_dump(),
        {"role": "user", "content": "go on"},
    ]
    prompt = f"system: be brief\nuser: the cat\nassistant: {first.content}\nuser: go on\nassistant:"
    assert whole(openai, messages=messages).choices[0].message.content == text_of(alone(prompt, 48))


# ------------------------------------------------------------------ usage


def test_usage_counts_prompt_and_output(openai: OpenAI) -> None:
    usage = whole(openai).usage
    assert usage is not None
    prompt = len(TOKENIZER.encode(chat_prompt("the cat")))
    assert (usage.prompt_tokens, usage.completion_tokens) == (prompt, 48)
    assert usage.total_tokens == prompt + 48


def test_streamed_usage_comes_last_and_only_if_asked_for(openai: OpenAI) -> None:
    *chunks, last = streamed(openai, stream_options={"include_usage": True})
    assert all(chunk.usage is None and len(chunk.choices) == 1 for chunk in chunks)
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 48


def test_what_splitting_brought_is_told_beside_it(openai: OpenAI) -> None:
    extra = whole(openai, extra_body={"num_draft_tokens": 4}).model_extra
    assert extra is not None
    [figures] = extra["draftwire"]
    assert figures["tokens"] == 48
    assert 0 < figures["accepted"] <= figures["drafted"]
    assert figures["rounds"] < 48
    extra = whole(openai, extra_body={"num_draft_tokens": 0}).model_extra
    assert extra is not None
    assert extra["draftwire"][0]["drafted"] == 0


# ------------------------------------------------------------------ where it ends


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_limit_of_tokens(openai: OpenAI, name: str) -> None:
    options: dict[str, Any] = {"max_tokens": None} | {name: 7}
    answer = whole(openai, **options)
    assert answer.choices[0].message.content == text_of(IDS[:7])
    assert answer.choices[0].finish_reason == "length"


@pytest.mark.slow
def test_without_a_limit_it_goes_on_to_the_end_of_the_context() -> None:
    with world([mostly_right()]) as served, served.openai() as client:
        prompt = TOKENIZER.encode(chat_prompt("the cat"))
        answer = client.chat.completions.create(model="table", messages=ASK, temperature=0)
        assert answer.usage is not None
        assert answer.usage.total_tokens == 256 * 16  # all of the table target's KV
        assert answer.choices[0].message.content == text_of(
            MODEL.generate(prompt, 256 * 16 - len(prompt))
        )


@pytest.mark.parametrize("several", [False, True])
def test_stop_strings_end_it_and_are_no_part_of_it(openai: OpenAI, several: bool) -> None:
    stop = " ribe"
    assert 10 < TEXT.index(stop) < 40
    answer = whole(openai, stop=["nowhere to be found", stop] if several else stop)
    assert answer.choices[0].message.content == TEXT[: TEXT.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    chunks = streamed(openai, stop=stop)
    assert texts(chunks) == TEXT[: TEXT.index(stop)]
    assert chunks[-1].choices[0].finish_reason == "stop"


# ------------------------------------------------------------------ sampling


def test_the_same_seed_gives_the_same_text_and_another_another(openai: OpenAI) -> None:
    def said(seed: int) -> str | None:
        return whole(openai, temperature=1, seed=seed).choices[0].message.content

    assert said(7) == said(7) != said(8)
    assert said(-7) == said(-7)  # theirs are signed
    assert texts(streamed(openai, temperature=1, seed=7)) == said(7)


def test_temperature_is_1_unless_told_otherwise(openai: OpenAI) -> None:
    request: dict[str, Any] = {name: GREEDY[name] for name in ("model", "messages", "max_tokens")}
    default = openai.chat.completions.create(**request, seed=7)
    told = openai.chat.completions.create(**request, seed=7, temperature=1)
    assert default.choices[0].message.content == told.choices[0].message.content != TEXT


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.5, "seed": 3},
        {"temperature": 1, "seed": 3, "top_p": 0.2},
        {"presence_penalty": 2.0},
        {"frequency_penalty": 2.0},
        {"logit_bias": {str(IDS[0]): -100}},
        {"temperature": 1, "seed": 3, "extra_body": {"top_k": 2}},
        {"temperature": 1, "seed": 3, "extra_body": {"min_p": 0.5}},
        {"extra_body": {"repetition_penalty": 1.5}},
        {"extra_body": {"stop_token_ids": [IDS[9]]}},
        {"extra_body": {"verify_mode": "rejection"}, "temperature": 1, "seed": 3},
    ],
    ids=lambda options: "+".join(options.get("extra_body", {**options})),
)
def test_a_parameter_is_the_client_s_own_option(
    served: World, openai: OpenAI, options: dict[str, Any]
) -> None:
    extra = options.get("extra_body", {})
    ours = {name: one for name, one in options.items() if name != "extra_body"} | extra
    if "logit_bias" in ours:
        ours["logit_bias"] = {int(token): bias for token, bias in ours["logit_bias"].items()}
    expected = direct(served, **{"temperature": 0, "num_draft_tokens": 0} | ours)
    if ours.get("verify_mode") == "rejection":  # the text depends on the drafts there
        extra = extra | {"num_draft_tokens": 0}
    got = whole(openai, **options | {"extra_body": extra}).choices[0].message.content
    assert got == expected
    assert got != TEXT


def direct(served: World, **options: Any) -> str:
    """What the SDK gives for the same."""
    from edge_client.sync import _Loop

    async def read() -> str:
        return await served.client.generate(messages=ASK, max_tokens=48, **options).read()

    return _Loop.run(read())


def test_n_outputs_are_different_and_the_first_is_that_of_the_seed(openai: OpenAI) -> None:
    one = whole(openai, temperature=1, seed=7)
    three = whole(openai, temperature=1, seed=7, n=3)
    said = [choice.message.content for choice in three.choices]
    assert [choice.index for choice in three.choices] == [0, 1, 2]
    assert said[0] == one.choices[0].message.content
    assert len(set(said)) == 3
    assert three.usage is not None
    assert one.usage is not None
    assert three.usage.prompt_tokens == one.usage.prompt_tokens
    assert three.usage.completion_tokens == 3 * 48
    chunks = streamed(openai, temperature=1, seed=7, n=3)
    assert [texts(chunks, index) for index in range(3)] == said
    assert sum(chunk.choices[0].finish_reason == "length" for chunk in chunks) == 3


# ------------------------------------------------------------------ log-probabilities


def test_logprobs_of_every_token_and_its_alternatives(openai: OpenAI) -> None:
    told = whole(openai, logprobs=True, top_logprobs=2).choices[0].logprobs
    assert told is not None
    assert told.content is not None
    assert [one.bytes for one in told.content] == [list(TOKENIZER.piece(token)) for token in IDS]
    for one in told.content:
        assert len(one.top_logprobs) == 2
        assert one.logprob == one.top_logprobs[0].logprob <= 0  # greedy: the likeliest
        assert one.top_logprobs[0].logprob >= one.top_logprobs[1].logprob
    chunks = streamed(openai, logprobs=True, top_logprobs=2)
    parts = [chunk.choices[0].logprobs for chunk in chunks]
    assert [one for part in parts if part for one in part.content or []] == told.content
    assert texts(chunks) == TEXT


def test_logprobs_without_alternatives(openai: OpenAI) -> None:
    told = whole(openai, logprobs=True).choices[0].logprobs
    assert told is not None
    assert told.content is not None
    assert len(told.content) == 48
    assert all(one.top_logprobs == [] for one in told.content)


# ------------------------------------------------------------------ predictions and formats


def test_a_prediction_saves_passes_and_changes_nothing(openai: OpenAI) -> None:
    def rounds(**options: Any) -> int:
        answer = whole(openai, **options)
        assert answer.choices[0].message.content == TEXT
        assert answer.model_extra is not None
        return int(answer.model_extra["draftwire"][0]["rounds"])

    k = {"extra_body": {"num_draft_tokens": 8}}
    told = {"prediction": {"type": "content", "content": TEXT}}
    assert rounds(**k, **told) < rounds(**k)


SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"]}, "sure": {"type": "boolean"}},
    "required": ["colour", "sure"],
    "additionalProperties": False,
}


def test_a_json_schema_is_kept_to(openai: OpenAI) -> None:
    pytest.importorskip("llguidance")
    form = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}
    answer = whole(openai, response_format=form, max_tokens=200)
    said = json.loads(answer.choices[0].message.content or "")
    assert said["colour"] in ("red", "green")
    assert isinstance(said["sure"], bool)
    assert answer.choices[0].finish_reason == "stop"
    assert texts(streamed(openai, response_format=form, max_tokens=200)) == (
        answer.choices[0].message.content
    )


def test_json_object_gives_an_object_as_far_as_it_gets(openai: OpenAI) -> None:
    pytest.importorskip("llguidance")
    said = whole(openai, response_format={"type": "json_object"}).choices[0].message.content
    assert said is not None
    assert said.startswith("{")
    assert whole(openai, response_format={"type": "text"}).choices[0].message.content == TEXT


def test_values_that_ask_for_what_happens_anyway_are_taken(openai: OpenAI) -> None:
    answer = whole(
        openai,
        n=1,
        logprobs=False,
        store=False,
        tools=[],
        tool_choice="none",
        modalities=["text"],
        service_tier="auto",
        user="someone",
        extra_body={"functions": [], "top_logprobs": None},
    )
    assert answer.choices[0].message.content == TEXT
