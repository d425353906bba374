"""A streamed answer is the whole one in pieces, whatever was asked for."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

pytest.importorskip("starlette")

from endpoint_world import World, alone, chat_prompt, text_of

TEXT = text_of(alone(chat_prompt("the cat"), 40))


def some_options(draw: random.Random) -> dict[str, Any]:
    """Options of a request, each given or not."""
    at = draw.randrange(len(TEXT) - 3)
    choices: dict[str, Any] = {
        "n": draw.choice([2, 3]),
        "stop": [TEXT[at : at + draw.choice([1, 2, 3])], "é"],
        "max_tokens": draw.choice([1, 2, 17, 40]),
        "temperature": draw.choice([0, 0.7, 1.5]),
        "top_p": 0.9,
        "presence_penalty": 1.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.2,
        "logit_bias": {"101": 5, "195": 20, "169": 20},  # two halves of a character
        "prediction": {"type": "content", "content": TEXT[:at]},
        "num_draft_tokens": draw.choice([0, 1, 6]),
    }
    told = {"logprobs": True, "top_logprobs": draw.choice([0, 2])} if draw.random() < 0.5 else {}
    given = {name: value for name, value in choices.items() if draw.random() < 0.5}
    return {"max_tokens": 40, "seed": draw.randrange(1 << 32)} | given | told


def joined(lines: str) -> tuple[list[dict[str, Any]], Any]:
    """The choices and the usage that the events of a stream add up to."""
    events = [line.removeprefix("data: ") for line in lines.split("\n\n") if line]
    assert events.pop() == "[DONE]"
    chunks = [json.loads(event) for event in events]
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for part in chunk["choices"]:
            one = choices.setdefault(
                part["index"], {"text": "", "logprobs": None, "finish_reason": None}
            )
            assert one["finish_reason"] is None  # nothing comes after the end
            one["text"] += part["delta"].get("content", "")
            if part["logprobs"] is not None:
                one["logprobs"] = (one["logprobs"] or []) + part["logprobs"]["content"]
            one["finish_reason"] = part["finish_reason"]
    return [choices[index] for index in sorted(choices)], chunks[-1]["usage"]


@pytest.mark.parametrize("seed", range(16))
def test_streamed_and_whole_are_the_same(served: World, seed: int) -> None:
    body = {"messages": [{"role": "user", "content": "the cat"}]} | some_options(
        random.Random(seed)
    )
    answer = served.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    whole = answer.json()
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    choices, usage = joined(served.post("/v1/chat/completions", json=body | stream).text)
    expected = [
        {
            "text": one["message"]["content"],
            "logprobs": (one["logprobs"] or {}).get("content") or None,
            "finish_reason": one["finish_reason"],
        }
        for one in whole["choices"]
    ]
    assert choices == expected
    for part in (usage, whole["usage"]):
        part.pop("prompt_tokens_details")  # the second time more of it was there already
    assert usage == whole["usage"]
