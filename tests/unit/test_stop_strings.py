"""Stop strings end a text exactly: rules 18 and 22 at the verifier, and what an app sees."""

from __future__ import annotations

from typing import Any

import pytest
from virtual_client import TOKENIZER, read, serving

from cloud_verifier.sessions import Session, Stream
from cloud_verifier.target import Judgement
from draftwire.errors import InvalidRequest, UnsupportedParameter
from draftwire.testing.clock import run_virtual
from draftwire.testing.table import TableModel
from draftwire.types import (
    Draft,
    Finished,
    FinishReason,
    History,
    ModelCard,
    Open,
    Opened,
    ServingLimits,
    StopRules,
    TargetIdentity,
    Timing,
    TokenLogprobs,
    Verdict,
)
from edge_client.results import Summary

EOS = 0
PIECES = [b"", b"ab", b"c<", b"stop", b">d", b" e", "é".encode()[:1], "é".encode()[1:]]
STOP = StopRules(strings=("<stop>", "é"), max_tokens=8)
PROMPT = (4, 4)
CARD = ModelCard(
    target=TargetIdentity(
        model="m",
        digest=b"t",
        dtype="float32",
        vocabulary_fingerprint=b"v",
        noise_version=1,
        eos_token_ids=(EOS,),
    ),
    limits=ServingLimits(max_context=40),
    vocabulary_size=len(PIECES),
    features=("stop_strings",),
)


def opening(text: tuple[int, ...] = (), **changes: Any) -> Open:
    values: dict[str, Any] = {
        "session_id": bytes(16),
        "attempt": 1,
        "generation": 1,
        "start": len(PROMPT),
        "history": History(tokens=(*PROMPT, *text)),
        "vocabulary_fingerprint": b"v",
        "stop": STOP,
    }
    return Open(**(values | changes))


def attach(session: Session, frame: Open) -> list[Any]:
    history = session.resolve(frame)
    session.open(frame, history, Stream())
    return list(session.greeting(len(history)))


def opened(**changes: Any) -> Session:
    session = Session(bytes(16), "", CARD, PIECES.__getitem__)
    attach(session, opening(**changes))
    return session


def judge(session: Session, *drafts: int, token: int) -> list[Any]:
    """All of the drafts hold, then comes `token`."""
    at = len(session.tokens)
    session.draft(Draft(base=at, epoch=0, tokens=drafts, credit=1))
    told = [TokenLogprobs(logprob=-float(i)) for i in range(len(drafts) + 1)]
    return list(session.commit(len(drafts), Judgement(len(drafts), token, told), Timing()))


def test_rule_18_a_stop_string_cuts_the_verdict_after_the_token_that_completes_it() -> None:
    session = opened()
    verdict, finished = judge(session, 1, 2, 3, 4, 5, token=1)
    assert (verdict.accepted, verdict.next) == (4, ())
    assert len(verdict.logprobs) == 4
    assert finished == Finished(reason=FinishReason.STOP, length=3, usage=finished.usage)
    assert finished.usage.completion_tokens == 1  # `c<` holds a part of it


def test_rule_18_it_is_found_over_several_verdicts_and_takes_committed_tokens_back() -> None:
    session = opened()
    assert len(judge(session, 1, token=2)) == 1
    assert len(judge(session, token=3)) == 1
    verdict, finished = judge(session, token=4)
    assert verdict.next == (4,)
    assert finished.length == 3


@pytest.mark.parametrize(
    ("drafts", "stop", "reason", "length"),
    [
        ((1, EOS), StopRules(strings=("nothing",)), FinishReason.STOP, 4),
        ((1, 5), StopRules(strings=(" e",), max_tokens=2), FinishReason.STOP, 3),
        ((1, 5), StopRules(strings=(" e",), token_ids=(5,)), FinishReason.STOP, 4),
        ((1, 5), StopRules(strings=("x",), max_tokens=2), FinishReason.LENGTH, 4),
        ((6, 7), STOP, FinishReason.STOP, 2),
        ((5, 1, 5), StopRules(strings=(" e",), min_tokens=2), FinishReason.STOP, 4),
        ((2, 3, 4), StopRules(strings=("<stop>",), min_tokens=1, max_tokens=3), "length", 5),
    ],
    ids=[
        "end token",
        "stop string before length",
        "stop token before stop string",
        "length",
        "all of the output",
        "none among the first tokens",
        "none that begins among them",
    ],
)
def test_rule_18_what_ends_a_text_first_says_so(
    drafts: tuple[int, ...], stop: StopRules, reason: FinishReason | str, length: int
) -> None:
    session = opened(stop=stop)
    finished = judge(session, *drafts, token=1)[-1]
    assert finished.reason is FinishReason(reason)
    assert finished.length == length


@pytest.mark.parametrize("known", range(5))
def test_rule_22_the_tokens_taken_back_are_replayed(known: int) -> None:
    session = opened(logprobs=1)
    verdict, finished = judge(session, 1, 2, 3, 4, token=5)
    text = (1, 2, 3, 4)
    greeting = attach(session, opening(text[:known], attempt=2, logprobs=1))
    assert greeting[-1] == finished
    if known < 4:
        replay = greeting[1]
        assert replay.next == text[known:]
        assert replay.logprobs == verdict.logprobs[known:]


def test_rule_6_a_stop_string_is_found_again_in_the_history() -> None:
    session = Session(bytes(16), "", CARD, PIECES.__getitem__)
    opened_again, finished = attach(session, opening((1, 2, 3, 4), attempt=7))
    assert isinstance(opened_again, Opened)
    assert finished.reason is FinishReason.STOP
    assert finished.length == 3


def test_rule_6_what_a_history_has_begun_goes_on() -> None:
    session = Session(bytes(16), "", CARD, PIECES.__getitem__)
    assert len(attach(session, opening((1, 2, 3)))) == 1
    verdict, finished = judge(session, token=4)
    assert isinstance(verdict, Verdict)
    assert finished.length == 3


def test_a_next_turn_goes_on_from_what_is_retained() -> None:
    session = opened()
    judge(session, 1, 2, 3, 4, token=5)
    frame = opening((1, 5, 5), attempt=2, generation=2, start=5)
    assert len(attach(session, frame)) == 1
    assert session.tokens == [*PROMPT, 1, 5, 5]
    assert session.ready is False


def test_a_target_that_can_not_tell_its_tokens_text_refuses_stop_strings_by_name() -> None:
    from dataclasses import replace

    from cloud_verifier.admission import check_open

    with pytest.raises(UnsupportedParameter, match="stop strings"):
        check_open(opening(), replace(CARD, features=()))


@pytest.mark.parametrize("strings", [("",), ("x" * 1025,), ("é" * 513,), ("x",) * 65])
def test_stop_strings_are_bounded(strings: tuple[str, ...]) -> None:
    with pytest.raises(InvalidRequest, match="stop string"):
        StopRules(strings=strings)


# ------------------------------------------------------------------ what an app sees


ENDLESS = TableModel(vocabulary_size=320, states=512)
WHOLE = read(model=ENDLESS, max_tokens=60)


@pytest.mark.parametrize("k", [0, 4, None])
@pytest.mark.parametrize(
    ("first", "count", "inside"), [(9, 3, True), (20, 1, False), (30, 4, True)]
)
def test_text_ids_logprobs_and_usage_end_together(
    first: int, count: int, inside: bool, k: int | None
) -> None:
    """Stops that begin at a token's edge or inside it, over one token or several."""
    ids = WHOLE.token_ids
    data = b"".join(map(TOKENIZER.piece, ids))
    before = sum(len(TOKENIZER.piece(token)) for token in ids[:first])
    length = sum(len(TOKENIZER.piece(token)) for token in ids[first : first + count])
    stop = data[before + inside : before + length].decode(errors="ignore")
    place = data.find(stop.encode())
    assert stop

    summary = read(model=ENDLESS, stop=stop, num_draft_tokens=k, logprobs=True)
    assert summary.finish_reason is FinishReason.STOP
    assert summary.text == data[:place].decode(errors="replace")
    kept = summary.token_ids
    assert kept == ids[: len(kept)]
    ends = len(b"".join(map(TOKENIZER.piece, kept)))
    assert ends <= place < ends + len(TOKENIZER.piece(ids[len(kept)]))
    assert len(summary.logprobs) == len(kept) == summary.usage.completion_tokens


def test_no_delta_shows_what_is_taken_back() -> None:
    ids = WHOLE.token_ids
    stop = b"".join(map(TOKENIZER.piece, ids[10:16])).decode(errors="ignore").strip("\ufffd")

    async def run() -> tuple[list[str], list[int], Summary]:
        async with serving(ENDLESS) as (client, _):
            stream = client.generate("the cat", stop=["never", stop], max_tokens=60)
            deltas = [delta async for delta in stream]
            given = [token.id for delta in deltas for token in delta.tokens]
            return [delta.text for delta in deltas], given, stream.summary

    texts, given, summary = run_virtual(run())
    assert "".join(texts) == summary.text
    assert tuple(given) == summary.token_ids
    assert stop not in summary.text


def test_after_a_stop_string_the_conversation_goes_on_exactly() -> None:
    stop = TOKENIZER.piece(WHOLE.token_ids[12]).decode(errors="ignore") or " the"

    async def run() -> tuple[list[Summary], Summary]:
        async with serving(ENDLESS) as (client, _):
            session = await client.session()
            first = client.generate("the cat", session=session, stop=stop, max_tokens=60)
            await first.read()
            prompt = [*TOKENIZER.encode("the cat"), *first.summary.token_ids, 5, 6]
            second = client.generate(prompt, session=session, max_tokens=20)
            await second.read()
            fresh = client.generate(prompt, max_tokens=20)
            await fresh.read()
            return [first.summary, second.summary], fresh.summary

    (first, second), fresh = run_virtual(run())
    assert first.finish_reason is FinishReason.STOP
    assert second.token_ids == fresh.token_ids
    assert second.token_ids == tuple(
        ENDLESS.generate([*TOKENIZER.encode("the cat"), *first.token_ids, 5, 6], 20)
    )


def test_what_was_held_back_is_given_when_no_stop_string_comes_of_it() -> None:
    text = b"".join(map(TOKENIZER.piece, WHOLE.token_ids[:7])).decode(errors="replace")
    summary = read(model=ENDLESS, max_tokens=7, stop=text[-3:] + "never")
    assert summary.text == text
    assert summary.finish_reason is FinishReason.LENGTH
    assert summary.token_ids == WHOLE.token_ids[:7]
