"""Every error, as the official client meets it: its class, its status, and what it names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

pytest.importorskip("starlette")

from endpoint_world import QUICK, TOKENIZER, World, endpoint, world

from draftwire import errors
from draftwire.errors import DraftwireError
from edge_client.client import AsyncEdgeClient
from edge_client.endpoint.errors import described
from edge_client.sync import _Loop

ASK: Any = [{"role": "user", "content": "the cat"}]


@pytest.fixture(scope="module")
def client(served: World) -> Iterator[openai.OpenAI]:
    with served.openai() as client:
        yield client


def refusal(client: openai.OpenAI, **options: Any) -> openai.APIStatusError:
    asked: dict[str, Any] = {"model": "table", "messages": ASK, "max_tokens": 4} | options
    with pytest.raises(openai.APIStatusError) as refused:
        client.chat.completions.create(**asked)
    assert isinstance(refused.value.body, dict)
    assert set(refused.value.body) == {"message", "type", "param", "code"}
    return refused.value


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"temperature": 101}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 9}, "max_tokens"),  # and max_tokens is 4
        (
            {"max_tokens": None, "max_completion_tokens": 2**32},
            "max_completion_tokens",
        ),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 65}, "stop"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logit_bias": {"five": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"100000": 1}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"logit_bias": {"\u0665": 1}}, "logit_bias"),  # a digit, but none of ASCII
        ({"temperature": 10**400}, "temperature"),
        ({"top_p": 10**400}, "top_p"),
        ({"extra_body": {"min_p": 10**400}}, "min_p"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"extra_body": {"verify_mode": "guess"}}, "verify_mode"),
        ({"extra_body": {"num_draft_tokens": -1}}, "num_draft_tokens"),
        ({"extra_body": {"temperature": "hot"}}, "temperature"),
        ({"extra_body": {"seed": True}}, "seed"),
        ({"extra_body": {"stream": "yes"}}, "stream"),
        ({"extra_body": {"stop": 5}}, "stop"),
        ({"extra_body": {"stop_token_ids": ["5"]}}, "stop_token_ids"),
        ({"extra_body": {"regex": "(", "lark": "x"}}, None),
    ],
    ids=str,
)
def test_a_value_out_of_range_or_malformed_is_named(
    client: openai.OpenAI, options: dict[str, Any], param: str | None
) -> None:
    refused = refusal(client, **options)
    assert isinstance(refused, openai.BadRequestError)
    assert (refused.param, refused.code) == (param, "invalid_request")
    assert refused.type == "invalid_request_error"


IMAGE = {"type": "image_url", "image_url": {"url": "x"}}


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"audio": {"voice": "alloy", "format": "wav"}}, "audio"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"verbosity": "low"}, "verbosity"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"store": True}, "store"),
        ({"metadata": {"a": "b"}}, "metadata"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"extra_body": {"no_such_thing": 1}}, "no_such_thing"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "x", "name": "me"}]}, "messages[0].name"),
        (
            {"messages": [{"role": "user", "content": [IMAGE]}]},
            "messages[0].content[0].type",
        ),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {}, "description": "of a cat"},
                }
            },
            "response_format.json_schema.description",
        ),
        ({"prediction": {"type": "tokens", "content": "x"}}, "prediction.type"),
        (
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            "stream_options.include_obfuscation",
        ),
    ],
    ids=str,
)
def test_what_is_not_served_is_named(
    client: openai.OpenAI, options: dict[str, Any], param: str
) -> None:
    refused = refusal(client, **options)
    assert isinstance(refused, openai.BadRequestError)
    assert (refused.param, refused.code) == (param, "unsupported_parameter")


def test_a_schema_that_can_t_be_kept_to_is_the_response_format_s(client: openai.OpenAI) -> None:
    pytest.importorskip("llguidance")
    schema = {"type": "object", "patternProperties": {"(": {}}, "uniqueItems": "maybe"}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    refused = refusal(client, response_format=form)
    assert (refused.status_code, refused.param) == (400, "response_format")


def test_without_a_model_the_one_that_is_served_answers(served: World) -> None:
    for body in ({"messages": ASK, "max_tokens": 4}, {"prompt": "x", "model": None}):
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        answer = served.post(path, json=body)
        assert (answer.status_code, answer.json()["model"]) == (200, "table")


def test_a_model_that_is_not_here_is_not_found(client: openai.OpenAI) -> None:
    refused = refusal(client, model="gpt-5")
    assert isinstance(refused, openai.NotFoundError)
    assert (refused.param, refused.code) == ("model", "model_not_found")
    assert "use 'table'" in refused.message
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-5")


def test_a_prompt_beyond_the_context_is_said_to_be_too_long(client: openai.OpenAI) -> None:
    refused = refusal(client, messages=[{"role": "user", "content": "a cat" * 5000}])
    assert (refused.status_code, refused.code) == (400, "context_length_exceeded")


@pytest.mark.parametrize("stream", [False, True])
def test_a_verifier_that_can_t_be_reached_is_a_503(stream: bool) -> None:
    client = AsyncEdgeClient("127.0.0.1:9", TOKENIZER, retry=QUICK)
    with (
        endpoint(client) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0) as api,
    ):
        refused = refusal(api, stream=stream)
        assert (refused.status_code, refused.code) == (503, "link_lost")
        health = httpx.get(f"{url}/healthz")
        assert (health.status_code, health.json()["status"]) == (503, "unavailable")
    _Loop.run(client.close())


def test_too_many_requests_at_once_are_a_429() -> None:
    with world([], max_requests=1) as served, served.openai() as client:
        with served.gate.held():
            asked: Any = {"model": "table", "messages": ASK, "max_tokens": 4, "stream": True}
            first = served.later(lambda: list(client.chat.completions.create(**asked)))
            assert served.gate.began.wait(10)
            refused = refusal(client)
            assert isinstance(refused, openai.RateLimitError)
            assert refused.code == "too_many_requests"
        assert first.result(30)
        assert client.chat.completions.create(**asked)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/chat/completions", b"{", 400),
        ("/v1/chat/completions", b"[]", 400),
        ("/v1/chat/completions", b"\xff", 400),
        ("/v1/chat/completions", b"[" * 100_000, 400),
        ("/v1/chat/completions", b'{"model": "table", "model": "x"}', 400),
        ("/v1/chat/completions", b'{"temperature": NaN}', 400),
        ("/v1/chat/completions", rb'{"messages": [{"role": "user", "content": "\ud83d"}]}', 400),
        ("/v1/chat/completions", b'{"user": "\xed\xa0\xbd"}', 400),
        ("/v1/chat/completions", rb'{"\ud83d": 1}', 400),
        ("/v1/chat/completions", b" " * (5 << 20), 413),
        ("/v1/responses", b"{}", 404),
    ],
    ids=[
        "cut off",
        "no object",
        "no Unicode",
        "deep",
        "a name twice",
        "no number",
        "half a character",
        "half a character in bytes",
        "half a character in a name",
        "long",
        "another path",
    ],
)
def test_what_is_no_request_is_refused(served: World, path: str, body: bytes, status: int) -> None:
    answer = served.post(path, content=body)
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_a_path_asked_in_another_way_is_a_405(served: World) -> None:
    assert httpx.get(f"{served.url}/v1/chat/completions").status_code == 405


def leaves(kind: type[DraftwireError]) -> list[type[DraftwireError]]:
    below = [leaf for child in kind.__subclasses__() for leaf in leaves(child)]
    return below or [kind]


@pytest.mark.parametrize("kind", leaves(DraftwireError), ids=lambda kind: kind.__name__)
def test_every_error_of_ours_has_a_status_and_says_what_to_do(kind: type[DraftwireError]) -> None:
    told = described(kind("it broke", remedy="mend it"))
    assert 400 <= told.status < 600
    # Ours to mend, the caller's, or neither's: what may succeed later says so.
    assert (told.status in (429, 503, 504)) == (kind.retryable and kind is not errors.SessionGone)
    assert "mend it" in json.dumps(told.body)
