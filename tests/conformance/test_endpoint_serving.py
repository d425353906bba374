"""The endpoint as a server: callers that leave, callers at once, and who may call."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

import httpx
import pytest

pytest.importorskip("starlette")
pytest.importorskip("openai")

from endpoint_world import World, alone, chat_prompt, mostly_right, text_of, wait_until, world

from draftwire.errors import InvalidRequest, LinkNotSecure
from edge_client.endpoint.server import bind

BODY: dict[str, Any] = {
    "model": "table",
    "messages": [{"role": "user", "content": "the cat"}],
    "max_tokens": 24,
    "temperature": 0,
}
LONG = BODY | {"max_tokens": None}
"""To the end of the context."""
CONTEXT = 4096


# ------------------------------------------------------------------ callers that leave


def test_a_caller_that_leaves_a_stream_ends_the_generation(served: World) -> None:
    url = f"{served.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=LONG | {"stream": True}, timeout=60) as answer:
        assert next(answer.iter_lines()).startswith("data: ")
        [session] = served.verifier.engine.active.values()
    served.wait_until_idle()
    assert session.id in served.verifier.engine.idle
    assert len(session.tokens) < CONTEXT
    wait_until(lambda: served.drafters_free == 1)


def test_a_caller_that_leaves_while_it_waits_ends_the_generation(served: World) -> None:
    with served.gate.held():
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{served.url}/v1/chat/completions", json=LONG, timeout=0.2)
        assert served.gate.began.wait(10)
        [session] = served.verifier.engine.active.values()
    served.wait_until_idle()
    assert session.id in served.verifier.engine.idle
    assert len(session.tokens) < CONTEXT
    wait_until(lambda: served.drafters_free == 1)


def test_a_caller_that_leaves_while_others_draft_is_taken_out_of_the_queue(served: World) -> None:
    url = f"{served.url}/v1/chat/completions"
    with served.gate.held():
        first = served.later(lambda: served.post("/v1/chat/completions", json=BODY).json())
        assert served.gate.began.wait(10)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(url, json=BODY, timeout=0.2)
        wait_until(lambda: len(served.client._streams) == 1)
        last = served.later(lambda: served.post("/v1/chat/completions", json=BODY).json())
        wait_until(lambda: len(served.client._streams) == 2)
    for one in (first, last):
        said = one.result(30)["choices"][0]["message"]["content"]
        assert said == text_of(alone(chat_prompt("the cat"), 24))
    assert served.drafters_free == 1


# ------------------------------------------------------------------ callers at once


def test_requests_at_once_are_served_at_once_by_as_many_drafters() -> None:
    with world([mostly_right(seed) for seed in range(3)]) as served:
        prompts = [f"cat {index}" for index in range(9)]

        def ask(prompt: str) -> str:
            body = BODY | {"messages": [{"role": "user", "content": prompt}]}
            answer = served.post("/v1/chat/completions", json=body)
            return str(answer.json()["choices"][0]["message"]["content"])

        asked = [served.later(lambda prompt=prompt: ask(prompt)) for prompt in prompts]
        assert [one.result(60) for one in asked] == [
            text_of(alone(chat_prompt(prompt), 24)) for prompt in prompts
        ]
        assert served.drafters_free == 3


def test_who_waits_for_a_drafter_is_served_in_turn() -> None:
    with world([mostly_right()]) as served:
        done: list[int] = []
        with served.gate.held():
            asked = []
            for index in range(5):
                asked.append(served.later(lambda index=index: ask(served, index, done)))
                wait_until(lambda index=index: len(served.client._streams) == index + 1)
        for one in asked:
            one.result(60)
        assert done == [0, 1, 2, 3, 4]


def ask(served: World, index: int, done: list[int]) -> None:
    assert served.post("/v1/chat/completions", json=BODY).status_code == 200
    done.append(index)


# ------------------------------------------------------------------ what it tells of itself


def test_models_and_health(served: World) -> None:
    with served.openai() as client:
        [model] = client.models.list().data
        assert (model.id, model.owned_by) == ("table", "draftwire")
        assert client.models.retrieve("table") == model
    health = httpx.get(f"{served.url}/healthz")
    assert (health.status_code, health.json()) == (200, {"status": "ok", "model": "table"})


def test_the_model_may_have_another_name() -> None:
    with world([], name="gpt-4o") as served, served.openai() as client:
        assert [model.id for model in client.models.list().data] == ["gpt-4o"]
        assert served.post("/v1/chat/completions", json=BODY).status_code == 404
        answer = served.post("/v1/chat/completions", json=BODY | {"model": "gpt-4o"})
        assert answer.json()["model"] == "gpt-4o"


# ------------------------------------------------------------------ who may call


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "localhost"}, 200),
        ({"host": "attacker.example"}, 403),
        ({"origin": "https://attacker.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://["}, 403),
        ({"host": "[::1"}, 403),
    ],
)
def test_pages_of_others_are_kept_away(served: World, headers: dict[str, str], status: int) -> None:
    answer = httpx.get(f"{served.url}/v1/models", headers=headers)
    assert answer.status_code == status
    own = {"origin": served.url}
    assert httpx.get(f"{served.url}/v1/models", headers=own).status_code == 200


def test_an_address_that_others_reach_must_be_allowed() -> None:
    with pytest.raises(LinkNotSecure, match="--expose"):
        bind("0.0.0.0:0")
    with contextlib.closing(bind("0.0.0.0:0", expose=True)) as listening:
        assert listening.getsockname()[1]
    with contextlib.closing(bind("127.0.0.1:0")) as listening:
        taken = listening.getsockname()[1]
        with pytest.raises(InvalidRequest, match="can't listen"):
            bind(f"127.0.0.1:{taken}")
    with pytest.raises(InvalidRequest):
        bind("somewhere")


def test_an_address_of_ipv6() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    with contextlib.closing(bind("[::1]:0")) as listening:
        assert listening.family is socket.AF_INET6
