"""Completions through the official client: the prompt itself is continued, by the target."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("openai")

from endpoint_world import TOKENIZER, alone, text_of
from openai import BadRequestError, OpenAI
from openai.types import Completion

PROMPT = "the cat"
IDS = alone(PROMPT, 32)
TEXT = text_of(IDS)
GREEDY: dict[str, Any] = {"model": "table", "prompt": PROMPT, "max_tokens": 32, "temperature": 0}


def whole(openai: OpenAI, **options: Any) -> Completion:
    answer = openai.completions.create(**GREEDY | options)
    assert isinstance(answer, Completion)
    return answer


def streamed(openai: OpenAI, **options: Any) -> list[Completion]:
    return list(openai.completions.create(**GREEDY | options, stream=True))


def test_the_prompt_itself_is_continued(openai: OpenAI) -> None:
    answer = whole(openai)
    assert answer.choices[0].text == TEXT
    assert answer.choices[0].finish_reason == "length"
    assert answer.object == "text_completion"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(TOKENIZER.encode(PROMPT))
    chunks = streamed(openai, stream_options={"include_usage": True})
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == TEXT
    assert chunks[-1].usage == answer.usage
    assert chunks[-2].choices[0].finish_reason == "length"


def test_sixteen_tokens_unless_told_otherwise(openai: OpenAI) -> None:
    answer = openai.completions.create(model="table", prompt=PROMPT, temperature=0)
    assert answer.choices[0].text == text_of(IDS[:16])


def test_prompts_may_be_token_ids_and_several(openai: OpenAI) -> None:
    ids = TOKENIZER.encode(PROMPT)
    assert whole(openai, prompt=ids).choices[0].text == TEXT
    two = whole(openai, prompt=["a dog", PROMPT], n=2, temperature=1, seed=4)
    ones = [whole(openai, prompt=one, temperature=1, seed=4, n=2) for one in ("a dog", PROMPT)]
    assert [choice.index for choice in two.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in two.choices] == [
        choice.text for one in ones for choice in one.choices
    ]
    assert two.usage is not None
    counts = [one.usage.prompt_tokens for one in ones if one.usage]
    assert two.usage.prompt_tokens == sum(counts)
    assert whole(openai, prompt=[ids, [5, 6]]).choices[1].text == text_of(alone([5, 6], 32))


def test_logprobs_have_their_own_form(openai: OpenAI) -> None:
    told = whole(openai, logprobs=2).choices[0].logprobs
    assert told is not None
    assert told.tokens == [text_of([token]) for token in IDS]
    assert told.text_offset is not None
    assert told.text_offset[:3] == [0, len(told.tokens[0]), len(told.tokens[0] + told.tokens[1])]
    assert told.token_logprobs is not None
    assert told.top_logprobs is not None
    for token, value, top in zip(told.tokens, told.token_logprobs, told.top_logprobs, strict=True):
        assert top[token] == value == max(top.values())
    parts = [choice.logprobs for chunk in streamed(openai, logprobs=2) for choice in chunk.choices]
    offsets = [offset for part in parts if part for offset in part.text_offset or []]
    assert offsets == told.text_offset


def test_best_of_is_taken_where_it_is_n(openai: OpenAI) -> None:
    assert len(whole(openai, n=2, best_of=2).choices) == 2
    with pytest.raises(BadRequestError) as refused:
        whole(openai, best_of=3)
    assert refused.value.param == "best_of"


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"prompt": ""}, None),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, "two"]}, "prompt"),
        ({"echo": True}, "echo"),
        ({"suffix": "end"}, "suffix"),
        ({"logprobs": 21}, "top_logprobs"),
        ({"n": 100, "prompt": ["a", "b"]}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_what_is_refused_is_named(
    openai: OpenAI, options: dict[str, Any], param: str | None
) -> None:
    with pytest.raises(BadRequestError) as refused:
        whole(openai, **options)
    assert refused.value.param == param
