"""The SDK, asynchronous and blocking: the same tests for both, on a real verifier over loopback."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import operator
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import psutil
import pytest
from both_clients import Client, GatedTarget, asynchronous, blocking, serving

from cloud_verifier.server import VerifierServer
from draftwire.errors import (
    DeadlineExceeded,
    DraftwireError,
    InvalidRequest,
    LinkLost,
    PromptTooLong,
    VocabularyMismatch,
)
from draftwire.testing.table import TableModel, TableTokenizer
from draftwire.types import FinishReason, Tokens
from edge_client import client as async_client
from edge_client import sync as sync_client
from edge_client.branch import Origin
from edge_client.client import AsyncEdgeClient
from edge_client.drafter import Proposal
from edge_client.drafters.table import TableDrafter
from edge_client.results import Delta, Summary
from edge_client.retry import RetryPolicy
from edge_client.sync import EdgeClient, _Loop
from edge_client.transport import GrpcTransport

MODEL = TableModel(vocabulary_size=320, eos_rate=0.0)
TOKENIZER = TableTokenizer(320)
PROMPT = "the cat"
PROMPT_IDS = TOKENIZER.encode(PROMPT)
TEXT = MODEL.generate(PROMPT_IDS, 64)
"""What the target alone says after the prompt."""

QUICK = RetryPolicy(first_wait_s=0.01, longest_wait_s=0.02, give_up_after_s=0.1)


@pytest.fixture(scope="module")
def verifier() -> Iterator[VerifierServer]:
    with serving(MODEL) as server:
        yield server


@pytest.fixture(params=[blocking, asynchronous])
def make(request: pytest.FixtureRequest, verifier: VerifierServer) -> Iterator[Callable[..., Any]]:
    """Makes clients of the verifier, by default with a drafter that is always right."""
    made: list[Client] = []

    def make(*drafters: TableDrafter, address: str = verifier.address, **options: Any) -> Client:
        client = request.param(address, options.pop("tokenizer", TOKENIZER), drafters, **options)
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()
    late = time.monotonic() + 10  # the verifier hears of a stream's end a little later
    while verifier.engine.active and time.monotonic() < late:
        time.sleep(0.001)
    assert not verifier.engine.active  # whatever a test did, the verifier is rid of it


def right(**options: Any) -> TableDrafter:
    return TableDrafter(MODEL, **options)


def read(client: Client, prompt: Any = PROMPT, **options: Any) -> Summary:
    """Generate 64 tokens, unless told otherwise, to the end."""
    with client.generate(prompt, **{"max_tokens": 64, "num_draft_tokens": 4} | options) as stream:
        stream.read()
        summary: Summary = stream.summary
    return summary


# ------------------------------------------------------------------ text and tokens


def test_the_deltas_joined_are_the_text_of_the_targets_own_tokens(make: Callable[..., Any]) -> None:
    with make(right()).generate(PROMPT, max_tokens=64) as stream:
        deltas: list[Delta] = list(stream)
    tokens = [token for delta in deltas for token in delta.tokens]
    assert [token.id for token in tokens] == TEXT == list(stream.summary.token_ids)
    whole = b"".join(map(TOKENIZER.piece, TEXT)).decode(errors="replace")
    assert "".join(delta.text for delta in deltas) == whole == stream.summary.text
    assert "".join(token.text for token in tokens) == whole.removesuffix("�")


@pytest.mark.parametrize("k", [0, 1, 3, None])
def test_no_delta_splits_a_character(make: Callable[..., Any], k: int | None) -> None:
    # A vocabulary of 27 tokens, eight of which are parts of characters.
    model, tokenizer = TableModel(vocabulary_size=27), TableTokenizer(27)
    ids = model.generate([1, 2, 3], 300)
    whole = b"".join(map(tokenizer.piece, ids)).decode(errors="replace")
    assert all(character in whole for character in ("é", "ß", "語", "🚀", "👍🏽"))
    with serving(model) as server:
        client = make(TableDrafter(model), address=server.address, tokenizer=tokenizer)
        stream = client.generate([1, 2, 3], max_tokens=300, num_draft_tokens=k)
        assert "".join(delta.text for delta in stream) == whole


def test_a_prompt_may_be_text_tokens_or_messages(make: Callable[..., Any]) -> None:
    client = make(right())
    assert read(client, PROMPT).token_ids == read(client, PROMPT_IDS).token_ids == tuple(TEXT)
    messages = [{"role": "user", "content": "hi"}]
    prompt = TOKENIZER.encode("user: hi\nassistant:")
    assert list(read(client, None, messages=messages).token_ids) == MODEL.generate(prompt, 64)


def test_each_token_says_where_it_came_from(make: Callable[..., Any]) -> None:
    def origins(client: Client) -> list[Origin]:
        with client.generate(PROMPT, max_tokens=64, num_draft_tokens=4) as stream:
            return [token.origin for delta in stream for token in delta.tokens]

    always_right = origins(make(right()))
    assert Origin.CORRECTED not in always_right
    assert always_right.count(Origin.ACCEPTED) > 32
    always_wrong = origins(make(right(always_wrong=True)))
    assert Origin.ACCEPTED not in always_wrong
    assert always_wrong.count(Origin.CORRECTED) > 32
    assert origins(make()) == [Origin.CLOUD] * 64


def test_the_text_does_not_depend_on_k_or_on_who_drafts(make: Callable[..., Any]) -> None:
    drafters = [(), (right(),), (TableDrafter(MODEL.perturbed(0.3, seed=1)),)]
    for options in ({}, {"temperature": 0.9, "seed": 7}):
        texts = {
            read(make(*some), num_draft_tokens=k, **options).token_ids
            for some in drafters
            for k in (0, 3, None)
        }
        assert len(texts) == 1


def test_an_end_token_ends_the_text_and_ignore_eos_does_not(make: Callable[..., Any]) -> None:
    client = make(right())
    short = read(client, stop_token_ids=[TEXT[9]])
    assert (short.finish_reason, list(short.token_ids)) == (FinishReason.STOP, TEXT[:10])
    assert read(client).finish_reason is FinishReason.LENGTH


# ------------------------------------------------------------------ the summary


def test_the_summary_adds_up(make: Callable[..., Any]) -> None:
    drafter = TableDrafter(MODEL.perturbed(0.2, seed=2))
    with make(drafter).generate(PROMPT, max_tokens=64, num_draft_tokens=4) as stream:
        tokens = [token for delta in stream for token in delta.tokens]
    summary, usage = stream.summary, stream.summary.usage
    origins = [token.origin for token in tokens]
    assert summary.accepted == origins.count(Origin.ACCEPTED) == sum(t.drafted for t in tokens)
    assert summary.rounds == usage.passes
    assert summary.tau == 64 / summary.rounds
    assert 0 < summary.accepted < summary.drafted
    judged = summary.accepted + origins.count(Origin.CORRECTED)
    assert summary.alpha == pytest.approx(summary.accepted / judged, abs=0.05)
    assert 3 < summary.k_mean <= 4
    assert 0 < summary.ttft_ms < summary.duration_ms
    assert summary.tpot_ms * 63 == pytest.approx(summary.duration_ms - summary.ttft_ms)
    assert summary.tokens_per_s == pytest.approx(64e3 / summary.duration_ms)
    assert 0 < summary.rtt_ms < summary.duration_ms
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(PROMPT_IDS), 64)
    assert summary.streams == 1
    assert summary.bytes.up == summary.bytes.drafts_up + summary.bytes.other_up > 0
    assert summary.bytes.down == summary.bytes.verdicts_down + summary.bytes.other_down > 0


def test_without_drafts_the_summary_claims_none(make: Callable[..., Any]) -> None:
    summary = read(make(), num_draft_tokens=None)
    assert (summary.drafted, summary.accepted, summary.alpha, summary.k_mean) == (0, 0, 0, 0)
    assert summary.tau == 1


def test_drafts_that_were_only_compared_count_as_none(make: Callable[..., Any]) -> None:
    # The first tokens of the adaptive controller are the cloud's, while the device drafts along.
    summary = read(make(right()), num_draft_tokens=None, max_tokens=3)
    assert summary.accepted <= summary.drafted
    assert summary.drafted or summary.alpha == 0


def test_there_is_no_summary_before_the_end(make: Callable[..., Any]) -> None:
    stream = make().generate(PROMPT, max_tokens=3)
    with pytest.raises(InvalidRequest, match="not ended"):
        _ = stream.summary
    stream.read()
    assert stream.summary.finish_reason is FinishReason.LENGTH


def test_a_random_seed_is_reported_and_repeats_the_text(make: Callable[..., Any]) -> None:
    client = make(right())
    first = read(client, temperature=1.0)
    assert read(client, temperature=1.0, seed=first.seed).token_ids == first.token_ids
    other = read(client, temperature=1.0)
    assert other.seed != first.seed
    assert other.token_ids != first.token_ids


# ------------------------------------------------------------------ ending early


def test_cancel_ends_the_iterator_with_what_is_committed(make: Callable[..., Any]) -> None:
    client = make(right())
    stream = client.generate(PROMPT, max_tokens=2000)
    tokens = [token.id for _ in range(3) for token in next(stream).tokens]
    stream.cancel()
    tokens += [token.id for delta in stream for token in delta.tokens]
    assert stream.summary.finish_reason is FinishReason.CANCELLED
    assert list(stream.summary.token_ids) == tokens == TEXT[: len(tokens)]
    assert read(client).token_ids == tuple(TEXT)


def test_cancelled_before_it_began_it_generates_nothing(make: Callable[..., Any]) -> None:
    stream = make(right()).generate(PROMPT)
    stream.cancel()
    assert stream.read() == ""
    assert stream.summary.finish_reason is FinishReason.CANCELLED
    assert stream.summary.bytes.up == 0


def test_cancel_reaches_a_generation_that_waits_for_the_verifier(
    make: Callable[..., Any], verifier: VerifierServer
) -> None:
    target = verifier.engine.target
    assert isinstance(target, GatedTarget)
    stream = make(right()).generate(PROMPT)
    with ThreadPoolExecutor(1) as pool, target.held():
        text = pool.submit(stream.read)
        assert target.began.wait(60)
        stream.cancel()
        target.gate.set()
        assert text.result(60) == stream.summary.text
    assert stream.summary.finish_reason is FinishReason.CANCELLED


def test_cancel_reaches_a_generation_that_waits_for_a_drafter(make: Callable[..., Any]) -> None:
    client = make(right())
    holder, waiting = client.generate(PROMPT, max_tokens=2000), client.generate(PROMPT)
    next(holder)
    with ThreadPoolExecutor(1) as pool:
        text = pool.submit(waiting.read)
        next(holder)
        waiting.cancel()
        assert text.result(60) == ""
    assert waiting.summary.finish_reason is FinishReason.CANCELLED
    holder.close()
    assert read(client).accepted > 0  # the drafter has come back


def test_leaving_early_ends_the_generation_at_the_verifier(
    make: Callable[..., Any], verifier: VerifierServer
) -> None:
    client = make(right())
    with client.generate(PROMPT, max_tokens=2000) as stream:
        for _ in stream:
            break
    assert not verifier.engine.active
    assert stream.summary.finish_reason is FinishReason.CANCELLED
    assert list(stream) == []
    assert read(client).token_ids == tuple(TEXT)


def test_an_error_of_the_readers_own_ends_the_generation_too(
    make: Callable[..., Any], verifier: VerifierServer
) -> None:
    def stumble() -> None:
        with make(right()).generate(PROMPT, max_tokens=2000) as stream:
            for _ in stream:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        stumble()
    assert not verifier.engine.active


def test_one_that_is_dropped_ends_and_gives_its_drafter_back(make: Callable[..., Any]) -> None:
    client = make(right())
    for _ in client.generate(PROMPT, max_tokens=2000):
        break
    assert read(client, timeout_s=60).token_ids == tuple(TEXT)


def test_closed_without_being_read_it_asks_for_nothing(
    make: Callable[..., Any], verifier: VerifierServer
) -> None:
    known = set(verifier.engine.idle)
    make(right()).generate(PROMPT).close()
    assert set(verifier.engine.idle) == known


def test_a_session_sends_only_what_is_new(make: Callable[..., Any]) -> None:
    client = make(right())
    session, prompt = client.session(), PROMPT_IDS
    for _ in range(2):
        stream = client.generate(prompt, session=session, max_tokens=40)
        stream.read()
        assert session.tokens == [*prompt, *stream.summary.token_ids]
        prompt = [*session.tokens, 3]
    assert stream.summary.usage.cached_tokens > len(PROMPT_IDS)


def test_a_closed_client_says_so(make: Callable[..., Any]) -> None:
    client = make(right())
    chat = client.chat()
    client.close()
    for ask in (
        lambda: client.generate(PROMPT),
        lambda: client.generate("once"),
        lambda: client.samples(2, PROMPT),
        client.session,
        lambda: chat.send("once"),
    ):
        with pytest.raises(InvalidRequest, match="the client is closed — make another one"):
            ask()


def test_closing_the_client_ends_what_is_being_generated(
    make: Callable[..., Any], verifier: VerifierServer
) -> None:
    target = verifier.engine.target
    assert isinstance(target, GatedTarget)
    client = make(right())
    streams = [client.generate(PROMPT, max_tokens=2000) for _ in range(2)]
    next(streams[0])
    with ThreadPoolExecutor(2) as pool, target.held():
        texts = [pool.submit(stream.read) for stream in streams]
        assert target.began.wait(60)
        client.close()
        target.gate.set()
        assert TOKENIZER.encode(texts[0].result(60)) is not None
        assert texts[1].result(60) == ""
    assert {stream.summary.finish_reason for stream in streams} == {FinishReason.CANCELLED}


# ------------------------------------------------------------------ drafters


def test_with_one_drafter_the_second_generation_waits(
    make: Callable[..., Any], verifier: VerifierServer
) -> None:
    client = make(right())
    first = client.generate(PROMPT, max_tokens=2000)
    next(first)
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(read, client)
        for _ in range(5):
            next(first)
            assert len(verifier.engine.active) == 1
        first.close()
        assert second.result(60).token_ids == tuple(TEXT)


def test_with_two_drafters_two_generations_go_on_at_once(
    make: Callable[..., Any], verifier: VerifierServer
) -> None:
    client = make(right(), right())
    streams = [client.generate(PROMPT, max_tokens=64, num_draft_tokens=4) for _ in range(2)]
    tokens: list[list[int]] = [[], []]
    for _ in range(3):
        for stream, own in zip(streams, tokens, strict=True):
            own += [token.id for token in next(stream).tokens]
    assert len(verifier.engine.active) == 2
    for stream, own in zip(streams, tokens, strict=True):
        own += [token.id for delta in stream for token in delta.tokens]
    assert tokens == [TEXT, TEXT]
    assert all(stream.summary.accepted for stream in streams)


class Failing(TableDrafter):
    """Fails once, at its tenth draft."""

    async def draft(self, keep: int, tokens: Tokens) -> Proposal:
        if self.drafted == 9:
            self.drafted += 1
            raise RuntimeError("the battery is low")
        return await super().draft(keep, tokens)


def test_when_the_drafter_fails_the_cloud_goes_on_and_the_next_generation_drafts_again(
    make: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    client = make(Failing(MODEL))
    summary = read(client)
    assert summary.token_ids == tuple(TEXT)
    assert 0 < summary.drafted <= 9
    assert "the cloud goes on alone" in caplog.text
    again = read(client)
    assert again.token_ids == tuple(TEXT)
    assert again.accepted > 32


# ------------------------------------------------------------------ chat


def test_a_chat_remembers_its_turns_and_sends_only_what_is_new(make: Callable[..., Any]) -> None:
    chat = make(right()).chat("be brief " * 50)
    summaries = []
    for question in ("and one", "two", "three"):
        with chat.send(question, max_tokens=3) as stream:
            answer = stream.read()
        assert chat.messages[-2:] == [
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        ]
        summaries.append(stream.summary)
    assert [message["role"] for message in chat.messages] == ["system", *["user", "assistant"] * 3]
    prompt = TOKENIZER.encode_chat(chat.messages[:-1])
    assert list(summaries[2].token_ids) == MODEL.generate(prompt, 3)
    first, *later = summaries
    for before, after in zip(summaries, later, strict=False):
        # KV is kept by whole blocks of 16 tokens.
        assert after.usage.cached_tokens > before.usage.prompt_tokens - 16
        assert after.bytes.other_up < first.bytes.other_up / 2


def test_a_turn_that_failed_is_forgotten_and_one_that_was_cut_short_is_not(
    make: Callable[..., Any],
) -> None:
    chat = make(right()).chat()
    with pytest.raises(DraftwireError):
        chat.send("x" * 5000).read()
    assert chat.messages == []
    with chat.send("hello", max_tokens=1000) as stream:
        next(stream)
    assert chat.messages[-1] == {"role": "assistant", "content": stream.summary.text}


def test_a_turn_before_the_last_has_ended_is_refused_and_does_not_wait_for_ever(
    make: Callable[..., Any],
) -> None:
    chat = make(right()).chat()
    first = chat.send("hello", max_tokens=1000)
    next(first)
    with pytest.raises(InvalidRequest, match="in flight"):
        chat.send("are you there").read()
    first.close()
    assert chat.send("and now", max_tokens=5).read()


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -1},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 0},
        {"top_p": 1.1},
        {"min_p": 2},
        {"seed": -1},
        {"seed": 2**64},
        {"max_tokens": -1},
        {"num_draft_tokens": -1},
        {"num_draft_tokens": 257},
        {"stop_token_ids": [-1]},
        {"messages": [{"role": "user", "content": "hi"}]},
        {"prompt": None},
        {"prompt": ""},
        {"prompt": "half an emoji: \ud83d"},
        {"stop": "\ud83d"},
        {"temperature": 10**400},
        *(
            {"prompt": None, "messages": messages}
            for messages in (
                [],
                "hi",
                {"role": "user", "content": "hi"},
                [("user", "hi")],
                [{"role": "user"}],
                [{"content": "hi"}],
                [{"role": "user", "content": None}],
                [{"role": "user", "content": "\ud83d"}],
            )
        ),
    ],
    ids=str,
)
def test_a_value_out_of_range_is_refused_before_any_work(
    make: Callable[..., Any], options: dict[str, Any], verifier: VerifierServer
) -> None:
    known = set(verifier.engine.idle)
    with pytest.raises(InvalidRequest):
        make(right()).generate(**{"prompt": PROMPT} | options)
    assert set(verifier.engine.idle) == known


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_tokens": 1.5}, "max_tokens is 1.5, not an integer"),
        ({"max_tokens": True}, "max_tokens is True, not an integer"),
        ({"num_draft_tokens": 1.5}, "num_draft_tokens is 1.5, not an integer or None"),
        ({"offline_tokens": "4"}, "offline_tokens is '4', not an integer"),
        ({"seed": 1.0}, "seed is 1.0"),
        ({"temperature": "hot"}, "temperature is 'hot', not a number"),
        ({"timeout_s": "5"}, "timeout_s is '5', not a number or None"),
        ({"logit_bias": {"7": 1}}, "logit_bias is"),
        ({"logit_bias": [7]}, "logit_bias is [7], not a mapping"),
        ({"stop": 5}, "stop is 5, not text or a sequence with each text"),
        ({"stop": b"x"}, "stop is b'x'"),
        ({"stop_token_ids": [1.5]}, "stop_token_ids is [1.5]"),
        ({"prediction": b"the cat"}, "prediction is b'the cat'"),
        ({"logprobs": 5}, "logprobs is 5, not True or False"),
        ({"verify_mode": 1}, "verify_mode is 1"),
        ({"json_schema": {"const": {1}}}, "json_schema can't be said in JSON"),
        ({"prompt": b"the cat"}, "the prompt is b'the cat'"),
        ({"prompt": [1.5]}, "the prompt is [1.5]"),
        ({"n": 1.5}, "n is 1.5, not an integer"),
    ],
    ids=str,
)
def test_a_value_of_another_type_is_refused_by_name(
    make: Callable[..., Any], options: dict[str, Any], words: str
) -> None:
    client = make(right())
    make_streams = client.samples if "n" in options else client.generate
    with pytest.raises(InvalidRequest) as refused:
        make_streams(**{"prompt": PROMPT} | options)
    assert words in refused.value.message


def test_numbers_of_numpy_are_numbers(make: Callable[..., Any]) -> None:
    asked: dict[str, Any] = {"max_tokens": 20, "seed": 2**64 - 1, "temperature": 0.5}
    plain = make(right()).generate(PROMPT, **asked)
    theirs = make(right()).generate(
        np.array(TOKENIZER.encode(PROMPT)),
        max_tokens=np.int32(20),
        seed=np.uint64(2**64 - 1),
        temperature=np.float32(0.5),
        stop_token_ids=np.array([], np.int64),
        logit_bias={np.int64(5): np.float32(0)},
    )
    assert theirs.read() == plain.read()


def test_an_unknown_parameter_is_refused_by_name(make: Callable[..., Any]) -> None:
    client = make()
    with pytest.raises(TypeError, match="temprature"):
        client.generate(PROMPT, temprature=1.0)
    with pytest.raises(TypeError, match="temprature"):
        client.chat().send("hi", temprature=1.0)


def test_another_vocabulary_is_refused(make: Callable[..., Any]) -> None:
    client = make(tokenizer=TableTokenizer(300))
    with pytest.raises(VocabularyMismatch) as refused:
        client.generate(PROMPT).read()
    assert "same family and tokenizer" in refused.value.remedy


@pytest.mark.parametrize(
    ("prompt", "error"), [([5, 320], InvalidRequest), ([5] * 5000, PromptTooLong)]
)
def test_a_prompt_that_can_not_be_is_refused_and_the_client_is_as_good_as_before(
    make: Callable[..., Any], prompt: list[int], error: type[DraftwireError]
) -> None:
    client = make(right())
    with pytest.raises(error):
        client.generate(prompt).read()
    assert read(client).token_ids == tuple(TEXT)


def test_a_verifier_that_is_not_there_is_reported_at_once(make: Callable[..., Any]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    client = make(right(), address=address)
    started = time.monotonic()
    for ask in (client.card, lambda: read(client), lambda: client.chat().send("hi")):
        with pytest.raises(LinkLost, match=address) as lost:
            ask()
        assert "draftwire-verifier" in lost.value.remedy
    assert time.monotonic() - started < 5


def test_a_verifier_that_does_not_answer_is_reported_in_time(make: Callable[..., Any]) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        client = make(address=GrpcTransport(address, timeout_s=0.2))
        with pytest.raises(LinkLost, match="can't be reached") as lost:
            client.card()
        assert "draftwire-verifier" in lost.value.remedy


def test_a_verifier_that_has_gone_is_reported_when_patience_ends(make: Callable[..., Any]) -> None:
    with serving(MODEL) as server:
        client = make(right(), address=server.address, retry=QUICK)
        stream = client.generate(PROMPT, max_tokens=2000)
        next(stream)
        _Loop.run(server._server.stop(None))
        with pytest.raises(LinkLost):
            stream.read()


# ------------------------------------------------------------------ both alike, and nothing leaks


@pytest.mark.parametrize(
    ("blocking", "asynchronous"),
    [
        (sync_client.EdgeClient, async_client.AsyncEdgeClient),
        (sync_client.Stream, async_client.AsyncStream),
        (sync_client.Chat, async_client.AsyncChat),
    ],
)
def test_both_have_the_same_methods(blocking: type, asynchronous: type) -> None:
    def public(kind: type) -> set[str]:
        return {name for name, _ in inspect.getmembers(kind) if not name.startswith("_")}

    attributes = {"messages"} if asynchronous is async_client.AsyncChat else set()
    assert public(blocking) == public(asynchronous) | attributes


def test_both_are_made_from_the_same_arguments() -> None:
    assert inspect.signature(EdgeClient) == inspect.signature(AsyncEdgeClient)


def test_nothing_is_left_of_fifty_generations(make: Callable[..., Any]) -> None:
    client = make(right())
    process = psutil.Process()

    def some() -> None:
        read(client, max_tokens=20)
        with client.generate(PROMPT, max_tokens=2000) as stream:
            next(stream)
        stream = client.generate(PROMPT, max_tokens=2000)
        next(stream)
        stream.cancel()
        stream.read()

    async def tasks() -> int:
        for _ in range(10):
            await asyncio.sleep(0)  # those that have just been cancelled end
        return len(asyncio.all_tasks())

    def count() -> tuple[int, int, int]:
        return threading.active_count(), _Loop.run(tasks()), process.num_fds()

    some()
    before = count()
    for _ in range(17):
        some()
    most = tuple(there_were + 2 for there_were in before)  # those of other tests come and go
    patient_until = time.monotonic() + 10
    while any(map(operator.gt, count(), most)) and time.monotonic() < patient_until:
        time.sleep(0.05)
    assert all(map(operator.le, count(), most)), (count(), before)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """A shell has what it runs in the background ignore interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interrupt_ends_the_generation_before_it_is_raised(verifier: VerifierServer) -> None:
    target = verifier.engine.target
    assert isinstance(target, GatedTarget)

    def interrupt() -> None:
        assert target.began.wait(60)
        os.kill(os.getpid(), signal.SIGINT)

    hasty = RetryPolicy(cancel_timeout_s=0.05)  # does not wait for the verifier's word, held too
    with EdgeClient(verifier.address, TOKENIZER, [right()], retry=hasty) as client:
        stream = client.generate(PROMPT, max_tokens=2000)
        with ThreadPoolExecutor(1) as pool, target.held(), interruptible():
            pool.submit(interrupt)
            with pytest.raises(KeyboardInterrupt):
                stream.read()
            assert stream.summary.finish_reason is FinishReason.CANCELLED
            stream.close()
        assert read(client).token_ids == tuple(TEXT)


def test_a_callback_may_not_wait_for_its_own_thread(verifier: VerifierServer) -> None:
    with EdgeClient(verifier.address, TOKENIZER, [right()]) as client:

        async def callback() -> None:
            with pytest.raises(InvalidRequest, match="another thread"):
                client.card()

        _Loop.run(callback())


def test_a_client_stays_on_its_event_loop(verifier: VerifierServer) -> None:
    client = AsyncEdgeClient(verifier.address, TOKENIZER, [right()])

    async def first() -> None:
        assert await client.generate(PROMPT, max_tokens=4).read()

    async def second() -> None:
        for asked in (client.card(), client.generate(PROMPT).read()):
            with pytest.raises(InvalidRequest, match="another event loop"):
                await asked

    _Loop.run(first())
    asyncio.run(second())
    _Loop.run(client.close())


FORKED = """
import os, sys
from draftwire.testing.table import TableTokenizer
from edge_client import DraftwireError, EdgeClient

def ask(client):
    return client.generate("x", max_tokens=3).read()

made = EdgeClient(sys.argv[1], TableTokenizer(320))
said = ask(made)
if os.fork() == 0:
    try:
        ask(made)
    except DraftwireError as error:
        print(error.code, "before the process forked" in str(error), flush=True)
    os._exit(0)
os.wait()
made.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_client_from_before_a_fork_says_so(verifier: VerifierServer) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FORKED, verifier.address],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert ran.stdout.split() == ["INVALID_REQUEST", "True"], ran.stderr


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:", ":7433", "127.0.0.1:99999", ""])
def test_an_address_that_is_none_is_refused_by_name(address: str) -> None:
    with pytest.raises(InvalidRequest, match="is no address — give HOST:PORT"):
        AsyncEdgeClient(address, TOKENIZER)


# ------------------------------------------------------------------ timeouts, defaults, beginnings


def test_a_generation_that_takes_too_long_ends_with_an_error(
    make: Callable[..., Any], verifier: VerifierServer
) -> None:
    target = verifier.engine.target
    assert isinstance(target, GatedTarget)
    client, given = make(right(), retry=RetryPolicy(cancel_timeout_s=0.05)), list[Delta]()
    with client.generate(PROMPT, max_tokens=64, timeout_s=0.2) as stream:
        given.append(next(stream))
        with target.held(), pytest.raises(DeadlineExceeded, match=r"0\.2 s"):
            given.extend(stream)  # which never comes, for the pass does not end
    assert stream.summary.finish_reason is FinishReason.CANCELLED
    said = [token.id for delta in given for token in delta.tokens]
    assert said == TEXT[: len(said)]
    assert read(client, timeout_s=60).token_ids == tuple(TEXT)


def test_one_that_ends_in_time_is_not_disturbed(make: Callable[..., Any]) -> None:
    assert read(make(right()), timeout_s=60).token_ids == tuple(TEXT)


def test_a_chat_may_go_on_from_messages(make: Callable[..., Any]) -> None:
    before = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    chat = make(right()).chat("be brief", messages=before)
    with chat.send("the cat", max_tokens=8) as stream:
        said = stream.read()
    prompt = "system: be brief\nuser: hi\nassistant: ho\nuser: the cat\nassistant:"
    assert stream.summary.token_ids == tuple(MODEL.generate(TOKENIZER.encode(prompt), 8))
    assert chat.messages[1:] == [
        *before,
        {"role": "user", "content": "the cat"},
        {"role": "assistant", "content": said},
    ]
    assert len(before) == 2  # the caller's list is the caller's
