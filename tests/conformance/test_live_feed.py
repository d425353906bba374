"""The page's feed: an answer token by token, and what happened meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

pytest.importorskip("starlette")
pytest.importorskip("openai")

from endpoint_world import World, alone, chat_prompt, mostly_right, text_of, world

from draftwire.testing.link import LinkProfile

BODY: dict[str, Any] = {
    "model": "table",
    "messages": [{"role": "user", "content": "the cat"}],
    "max_tokens": 48,
    "temperature": 0,
    "num_draft_tokens": 4,
}
TEXT = text_of(alone(chat_prompt("the cat"), 48))


@pytest.fixture(scope="module")
def served() -> Iterator[World]:
    with world([mostly_right()], profile=LinkProfile(rtt_ms=4)) as served:
        yield served


def feed(served: World, **options: Any) -> Iterator[dict[str, Any]]:
    url = f"{served.url}/draftwire/chat"
    with httpx.stream("POST", url, json=BODY | options, timeout=60) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line:
                yield json.loads(line.removeprefix("data: "))


def text(events: list[dict[str, Any]]) -> str:
    told = [event for event in events if event["type"] == "tokens"]
    return "".join("".join(text for text, _ in one["tokens"]) + one["rest"] for one in told)


def test_every_token_says_where_it_came_from(served: World) -> None:
    events = list(feed(served))
    assert text(events) == TEXT
    assert events[0] == {"type": "begin", "model": "table", "max_context": 4096}
    origins = [
        origin for event in events if event["type"] == "tokens" for _, origin in event["tokens"]
    ]
    assert set(origins) <= {"accepted", "corrected", "cloud"}
    assert (len(origins), events[-1]["type"]) == (48, "end")
    assert origins.count("accepted") == events[-1]["accepted"] > 0
    assert (events[-1]["finish_reason"], events[-1]["tokens"]) == ("length", 48)


def test_every_round_says_what_was_drafted_and_what_held(served: World) -> None:
    events = list(feed(served))
    rounds = [event for event in events if event["type"] == "round"]
    assert sum(one["committed"] for one in rounds) == 48
    assert sum(one["passed"] for one in rounds) == events[-1]["rounds"]
    assert sum(one["held"] for one in rounds) >= events[-1]["accepted"]
    assert {one["mode"] for one in rounds} == {"waiting"}
    assert max(one["window"] for one in rounds) == 4
    assert any(one["rtt_ms"] >= 4 for one in rounds if one["rtt_ms"] is not None)


def test_the_cloud_alone_is_a_matter_of_one_parameter(served: World) -> None:
    events = list(feed(served, num_draft_tokens=0))
    assert text(events) == TEXT
    assert {one["mode"] for one in events if one["type"] == "round"} == {"cloud-alone"}


def test_an_outage_is_told_and_so_is_its_end(served: World) -> None:
    assert served.link is not None
    events = []
    for event in feed(served, max_tokens=400):
        if event["type"] == "tokens" and not any(one["type"] == "tokens" for one in events):
            served.link.cut(refuse_s=0.8)
        events.append(event)
    links = [event["lost"] for event in events if event["type"] == "link"]
    assert len(links) == 2
    assert "connect" in links[0].lower() or "reset" in links[0].lower()
    assert links[1] is None
    assert text(events) == text_of(alone(chat_prompt("the cat"), 400))


def test_what_fails_is_the_last_event(served: World) -> None:
    answer = served.post("/draftwire/chat", json=BODY | {"n": 2})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n")
    answer = served.post(
        "/draftwire/chat", json=BODY | {"messages": [{"role": "user", "content": "a cat" * 5000}]}
    )
    *_, last = [json.loads(line[6:]) for line in answer.text.splitlines() if line]
    assert last["error"]["code"] == "context_length_exceeded"


def test_the_page_asks_for_nothing_from_elsewhere(served: World) -> None:
    answer = httpx.get(f"{served.url}/")
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "http" not in answer.text.replace("http://www.w3.org/2000/svg", "")
