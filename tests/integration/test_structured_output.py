"""The demo pair under grammars: what comes out obeys them, and is what the cloud says alone."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("llama_cpp")
pytest.importorskip("llguidance")

from draftwire.errors import InvalidRequest
from draftwire.types import FinishReason
from edge_client.client import AsyncEdgeClient
from edge_client.drafters.llama import LlamaDrafter, LlamaModel
from edge_client.results import Summary

pytestmark = [pytest.mark.models, pytest.mark.slow]

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "pets": {"type": "array", "items": {"enum": ["cat", "dog"]}, "maxItems": 3},
    },
    "required": ["name", "age", "pets"],
    "additionalProperties": False,
}
QUESTION = [{"role": "user", "content": "Describe a person as JSON: name, age, pets."}]


def client_of(verifier: str, model: LlamaModel, drafters: int = 1) -> AsyncEdgeClient:
    made = [LlamaDrafter(model, threads=1, context=1024) for _ in range(drafters)]
    return AsyncEdgeClient(verifier, model.tokenizer, made)


async def generate(client: AsyncEdgeClient, **options: Any) -> Summary:
    stream = client.generate(messages=QUESTION, **{"max_tokens": 120, "seed": 3} | options)
    await stream.read()
    return stream.summary


def check(text: str) -> None:
    value = json.loads(text)
    assert set(value) == set(SCHEMA["required"])
    assert isinstance(value["name"], str)
    assert len(value["name"]) <= 30
    assert 0 <= value["age"] <= 120
    assert len(value["pets"]) <= 3
    assert set(value["pets"]) <= {"cat", "dog"}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.9},
        {"temperature": 0.9, "verify_mode": "rejection"},
        {"temperature": 0.9, "verify_mode": "typical"},
    ],
    ids=["greedy", "match", "rejection", "typical"],
)
def test_a_text_is_of_its_schema_and_the_same_split_and_alone(
    runner: asyncio.Runner, model: LlamaModel, verifier: str, options: dict[str, Any]
) -> None:
    async def scenario() -> list[Summary]:
        async with client_of(verifier, model) as client:
            return [
                await generate(client, num_draft_tokens=k, json_schema=SCHEMA, **options)
                for k in (0, 4, None)
            ]

    alone, *split = runner.run(scenario())
    for run in (alone, *split):
        assert run.finish_reason is FinishReason.STOP
        check(run.text)
    if "verify_mode" not in options:
        assert [run.token_ids for run in split] == [alone.token_ids] * 2


def test_a_device_that_knows_the_grammar_drafts_better(
    runner: asyncio.Runner, model: LlamaModel, verifier: str
) -> None:
    async def scenario() -> list[Summary]:
        async with client_of(verifier, model) as client:
            return [
                await generate(
                    client, num_draft_tokens=4, json_schema=SCHEMA, draft_with_grammar=guided
                )
                for guided in (True, False)
            ]

    guided, plain = runner.run(scenario())
    assert guided.token_ids == plain.token_ids
    assert (guided.alpha or 0) > (plain.alpha or 0)


def test_grammars_share_passes_with_other_texts(
    runner: asyncio.Runner, model: LlamaModel, verifier: str
) -> None:
    pattern = r"[A-Z][a-z]{2,12} is [0-9]{1,2} years old\."
    jobs: list[dict[str, Any]] = [
        {"json_schema": SCHEMA},
        {"temperature": 0.8},
        {"regex": pattern, "temperature": 0.8},
        {"lark": 'start: "yes" | "no" | "maybe, " /[a-z]{1,9}/'},
    ]

    async def scenario() -> tuple[list[Summary], list[Summary]]:
        async with client_of(verifier, model, drafters=4) as client:
            options: dict[str, Any] = {"num_draft_tokens": 4, "max_tokens": 60}
            together = await asyncio.gather(*(generate(client, **options, **job) for job in jobs))
            return together, [await generate(client, **options, **job) for job in jobs]

    together, single = runner.run(scenario())
    assert [run.token_ids for run in together] == [run.token_ids for run in single]
    assert re.fullmatch(pattern, together[2].text)
    assert re.fullmatch("yes|no|maybe, [a-z]{1,9}", together[3].text)


def test_what_does_not_compile_is_refused_by_the_verifier_and_by_the_device(
    runner: asyncio.Runner, model: LlamaModel, verifier: str
) -> None:
    async def scenario(guided: bool) -> None:
        async with client_of(verifier, model) as client:
            await generate(client, lark="start: nothing", draft_with_grammar=guided)

    for guided in (True, False):
        with pytest.raises(InvalidRequest, match='unknown name: "nothing"'):
            runner.run(scenario(guided))
