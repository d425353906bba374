"""The engine over the table target: what a step does for whom, and what it refuses."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from engine_bench import MODEL, PROMPT, Verifier, go, most, opening

from cloud_verifier.admission import check_open
from cloud_verifier.engine import Detached
from draftwire.errors import (
    DeadlineExceeded,
    DraftwireError,
    Draining,
    InternalError,
    InvalidRequest,
    LimitExceeded,
    ModelChanged,
    ModelNotFound,
    PermissionDenied,
    PromptTooLong,
    ProtocolVersion,
    ProtocolViolation,
    ServerFull,
    SessionGone,
    Superseded,
    UnsupportedParameter,
    VocabularyMismatch,
)
from draftwire.types import (
    Cancel,
    ClientFrame,
    CompactDistribution,
    Draft,
    Finished,
    FinishReason,
    Grammar,
    Opened,
    SamplingParams,
    StopRules,
    Timing,
    Tokens,
    Verdict,
    VerifyMode,
)

# ------------------------------------------------------------------ passes


def test_one_session_alone_gets_the_models_text_token_by_token() -> None:
    verifier = Verifier()
    stream = verifier.begin(opening(stop=most(12)), go())
    verifier.settle()
    opened, *_, end = verifier.heard[stream]
    assert isinstance(opened, Opened)
    assert opened.target == verifier.target.card.target
    assert verifier.text(stream) == MODEL.generate(PROMPT, 12)
    assert len(verifier.target.passes) == 12
    assert isinstance(end, Finished)
    assert (end.reason, end.length) == (FinishReason.LENGTH, 15)


def test_sessions_that_are_ready_share_one_pass() -> None:
    verifier = Verifier()
    prompts = [(5,), (6, 7, 8, 9), (10, 11)]
    streams = [
        verifier.begin(
            opening(name, prompt),
            Draft(base=len(prompt), epoch=0, tokens=MODEL.generate(prompt, name), credit=1),
        )
        for name, prompt in enumerate(prompts)
    ]
    verifier.step()
    (rows,) = verifier.target.passes
    assert [(len(row.tokens), row.drafts) for row in rows] == [(1, 0), (5, 1), (4, 2)]
    for name, (stream, prompt) in enumerate(zip(streams, prompts, strict=True)):
        (verdict,) = verifier.verdicts(stream)
        assert verdict.accepted == name
        assert verdict.timing.pass_rows == 10
        assert list(verdict.next) == MODEL.generate(prompt, name + 1)[-1:]


def test_frames_that_come_during_a_pass_wait_for_the_next() -> None:
    verifier = Verifier()
    verifier.begin(opening(1), go())
    verifier.step()
    verifier.begin(opening(2), go())
    verifier.step()
    assert [len(rows) for rows in verifier.target.passes] == [1, 2]


def test_a_session_is_idle_when_its_credit_is_used_up() -> None:
    verifier = Verifier()
    stream = verifier.begin(opening(), go(credit=3))
    verifier.settle()
    assert verifier.text(stream) == MODEL.generate(PROMPT, 3)
    assert not verifier.engine.has_work
    assert len(verifier.engine.active) == 1


def test_a_long_prompt_goes_in_chunks_and_holds_nobody_up() -> None:
    verifier = Verifier(max_batch_tokens=6)
    short = verifier.begin(opening(1, (5,)), go((5,)))
    long = verifier.begin(opening(2, range(1, 24)), go(range(23)))
    chunks = 0
    while not verifier.verdicts(long):
        verifier.step()
        chunks += 1
    assert chunks == 7  # one without it, then 4 tokens a pass
    assert len(verifier.verdicts(short)) == 7  # a token each
    assert all(sum(len(row.tokens) for row in rows) <= 6 for rows in verifier.target.passes)
    assert verifier.text(long) == MODEL.generate(range(1, 24), 1)


def test_a_chunk_says_nothing_and_judges_nothing() -> None:
    verifier = Verifier(max_batch_tokens=4)
    stream = verifier.begin(opening(1, range(1, 12)), go(range(11), credit=1))
    verifier.step()
    verifier.step()
    assert [type(item) for item in verifier.heard[stream]] == [Opened]
    verifier.step()
    assert verifier.text(stream) == MODEL.generate(range(1, 12), 1)
    assert [[row.judge for row in rows] for rows in verifier.target.passes] == [
        [False],
        [False],
        [True],
    ]


def test_rule_15_a_pass_judges_at_most_the_rows_less_one() -> None:
    verifier = Verifier(max_rows=4)
    drafts = MODEL.generate(PROMPT, 8)
    stream = verifier.begin(opening(), Draft(base=3, epoch=0, tokens=drafts, credit=0))
    verifier.settle()
    assert [verdict.accepted for verdict in verifier.verdicts(stream)] == [3, 3, 2]


def test_timing_tells_the_wait_from_the_pass() -> None:
    verifier = Verifier()
    stream = verifier.begin(opening(), go(credit=1))
    verifier.now = 0.25
    verifier.step()
    (verdict,) = verifier.verdicts(stream)
    timing = Timing(queue_us=250_000, pass_us=0, pass_rows=3, frames=1, heard_us=250_000)
    assert verdict.timing == timing


def test_a_verdict_says_which_frame_it_heard_last_and_when_but_once() -> None:
    verifier = Verifier(fixed_s=0.1)
    stream = verifier.begin(opening(), go())
    verifier.step()
    verifier.send(stream, go())
    verifier.now += 0.05
    verifier.step()
    verifier.step()
    timings = [verdict.timing for verdict in verifier.verdicts(stream)]
    assert [timing.frames for timing in timings] == [1, 2, 0]
    assert [timing.heard_us for timing in timings] == [0, 50_000, 0]


def test_the_wait_for_a_pass_is_counted_from_the_pass_before() -> None:
    verifier = Verifier()
    stream = verifier.begin(opening(), go(credit=2))
    verifier.step()
    verifier.now = 7.0
    verifier.send(stream, Draft(base=4, epoch=0, credit=2))
    verifier.step()
    verifier.now = 9.0
    verifier.step()
    waits = [verdict.timing.queue_us for verdict in verifier.verdicts(stream)]
    assert waits == [0, 7_000_000, 2_000_000]


def test_sessions_that_do_not_fit_into_one_pass_take_turns() -> None:
    verifier = Verifier(max_batch_tokens=1)
    streams = [verifier.begin(opening(name, (name,)), go((name,))) for name in (1, 2, 3)]
    for _ in range(12):
        verifier.now += 1
        verifier.step()
    assert [len(verifier.verdicts(stream)) for stream in streams] == [4, 4, 4]


def test_sampled_text_is_a_function_of_seed_and_position_only() -> None:
    sampling = SamplingParams(temperature=0.8, seed=11)
    alone, crowded = Verifier(), Verifier(max_batch_tokens=5)
    first = alone.begin(opening(sampling=sampling, stop=most(15)), go())
    alone.settle()
    for name in range(2, 6):
        crowded.begin(opening(name, (name,) * name, stop=most(9)), go((name,) * name))
    second = crowded.begin(opening(sampling=sampling, stop=most(15)), go())
    crowded.settle()
    assert alone.text(first) == crowded.text(second)
    assert alone.text(first) != MODEL.generate(PROMPT, 15)


def test_the_contexts_end_ends_the_text() -> None:
    verifier = Verifier(max_context=10)
    stream = verifier.begin(opening(), Draft(base=3, epoch=0, tokens=(1,) * 9, credit=60))
    verifier.settle()
    end = verifier.last(stream)
    assert isinstance(end, Finished)
    assert (end.reason, end.length) == (FinishReason.LENGTH, 10)


# ------------------------------------------------------------------ faults of a pass


def test_a_failing_pass_ends_the_streams_it_was_for_and_no_others() -> None:
    verifier = Verifier(max_batch_tokens=3)
    hit = verifier.begin(opening(1, stop=most(6)), go())
    other = verifier.begin(opening(2, stop=most(6)), go())
    verifier.target.broken = True
    verifier.step()
    verifier.target.broken = False
    verifier.settle()
    error = verifier.last(hit)
    assert isinstance(error, InternalError)
    assert error.session_id == opening(1).session_id.hex()
    assert "RuntimeError" in error.message
    assert "out of memory" not in error.message  # it may speak of another session
    assert verifier.text(other) == MODEL.generate(PROMPT, 6)
    verifier.check_books()


def test_after_a_failed_pass_the_session_goes_on_where_it_stood() -> None:
    verifier = Verifier()
    hit = verifier.begin(opening(stop=most(8)), go())
    verifier.step()
    verifier.step()
    verifier.target.broken = True
    verifier.step()
    verifier.target.broken = False
    assert isinstance(verifier.last(hit), InternalError)
    so_far = (*PROMPT, *verifier.text(hit))
    again = opening(prompt=so_far, prefix=5, attempt=2, start=3, stop=most(8))
    stream = verifier.begin(again, go(so_far))
    verifier.settle()
    opened = verifier.heard[stream][0]
    assert isinstance(opened, Opened)
    assert opened.cached == 4  # of full blocks, which the pass could not touch
    assert verifier.text(hit) + verifier.text(stream) == MODEL.generate(PROMPT, 8)
    verifier.check_books()


# ------------------------------------------------------------------ streams and sessions


def test_rule_4_a_later_open_fences_the_older_stream() -> None:
    verifier = Verifier()
    old = verifier.begin(opening(stop=most(9)), go(credit=2))
    verifier.settle()
    held = (*PROMPT, *verifier.text(old))
    new = verifier.begin(opening(prompt=held, prefix=5, attempt=2, start=3, stop=most(9)))
    verifier.send(old, Draft(base=5, epoch=0, tokens=(1, 1, 1), credit=9), Cancel(), Detached())
    verifier.send(new, go(held))
    verifier.settle()
    error = verifier.last(old)
    assert isinstance(error, Superseded)
    assert error.session_id == opening().session_id.hex()
    assert verifier.text(old) + verifier.text(new) == MODEL.generate(PROMPT, 9)


@pytest.mark.parametrize("attempt", [1, 2])
def test_rule_3_an_open_that_comes_too_late_is_superseded_and_changes_nothing(
    attempt: int,
) -> None:
    verifier = Verifier()
    owner = verifier.begin(opening(attempt=2, stop=most(6)), go())
    late = verifier.begin(opening(attempt=attempt), go())
    verifier.settle()
    assert isinstance(verifier.last(late), Superseded)
    assert verifier.text(owner) == MODEL.generate(PROMPT, 6)


def test_rule_1_a_session_belongs_to_the_key_that_opened_it() -> None:
    verifier = Verifier()
    mine = verifier.begin(opening(stop=most(6)), go(), owner="me")
    theirs = verifier.begin(opening(attempt=2), go(), owner="you")
    verifier.settle()
    assert isinstance(verifier.last(theirs), PermissionDenied)
    assert verifier.text(mine) == MODEL.generate(PROMPT, 6)


@pytest.mark.parametrize("frame", [go(), Cancel()])
def test_a_frame_before_open_is_a_violation(frame: ClientFrame) -> None:
    assert isinstance(Verifier().refusal(frame), ProtocolViolation)


def test_a_stream_opens_once() -> None:
    verifier = Verifier()
    stream = verifier.begin(opening(1), go(credit=1))
    verifier.settle()
    verifier.send(stream, opening(2))
    verifier.settle()
    assert isinstance(verifier.last(stream), ProtocolViolation)
    assert list(verifier.engine.idle) == [opening(1).session_id]
    assert not verifier.engine.active


def test_what_follows_an_error_on_a_stream_is_ignored() -> None:
    verifier = Verifier()
    stream = verifier.begin(go(), opening(), go(), Cancel(), Detached())
    verifier.settle()
    assert len(verifier.heard[stream]) == 1
    assert not verifier.engine.active


def test_rule_23_cancel_ends_the_generation_and_lets_go_of_its_blocks() -> None:
    verifier = Verifier()
    stream = verifier.begin(opening(), go())
    verifier.step()
    verifier.send(stream, Cancel(), Cancel())
    verifier.settle()
    ends = [item for item in verifier.heard[stream] if isinstance(item, Finished)]
    assert [(end.reason, end.length) for end in ends] == [(FinishReason.CANCELLED, 4)]
    assert verifier.engine.pool.held == 0
    assert not verifier.engine.active


def test_rule_23_a_client_that_vanishes_leaves_no_session_in_flight() -> None:
    verifier = Verifier()
    stream = verifier.begin(opening(), go())
    verifier.step()
    verifier.send(stream, Detached(), go())
    verifier.settle()
    assert len(verifier.target.passes) == 1
    assert not verifier.engine.active
    assert verifier.engine.pool.held == 0


def test_a_client_that_vanishes_before_its_open_was_applied_leaves_nothing_running() -> None:
    verifier = Verifier()
    verifier.begin(opening(), go(), Detached())
    verifier.settle()
    assert not verifier.engine.active
    assert verifier.target.passes == []


def test_a_draft_out_of_place_ends_the_stream_and_keeps_the_session() -> None:
    verifier = Verifier()
    stream = verifier.begin(opening(stop=most(9)), go(credit=2))
    verifier.settle()
    verifier.send(stream, Draft(base=40, epoch=0, tokens=(1,)))
    verifier.settle()
    error = verifier.last(stream)
    assert isinstance(error, ProtocolViolation)
    assert error.session_id == opening().session_id.hex()
    held = (*PROMPT, *verifier.text(stream))
    again = verifier.begin(
        opening(prompt=held, prefix=5, attempt=2, start=3, stop=most(9)), go(held)
    )
    verifier.settle()
    assert verifier.text(stream) + verifier.text(again) == MODEL.generate(PROMPT, 9)


@pytest.mark.parametrize(
    "draft",
    [
        Draft(base=3, epoch=0, tokens=(1,) * 21),
        Draft(base=3, epoch=0, tokens=(1,), credit=61),
    ],
    ids=["pending", "credit"],
)
def test_rule_25_more_than_the_limits_in_opened_is_an_error(draft: Draft) -> None:
    assert isinstance(Verifier().refusal(opening(), draft), LimitExceeded)


# ------------------------------------------------------------------ bounds


def test_no_more_generations_are_in_flight_than_allowed() -> None:
    verifier = Verifier(max_sessions=2)
    first = verifier.begin(opening(1), go(credit=1))
    verifier.begin(opening(2), go(credit=1))
    verifier.settle()
    error = verifier.refusal(opening(3))
    assert isinstance(error, ServerFull)
    assert error.retryable
    assert "--max-sessions" in error.remedy
    verifier.send(first, Cancel())
    served = verifier.begin(opening(3), go(credit=1))
    verifier.settle()
    assert verifier.text(served) == MODEL.generate(PROMPT, 1)


def test_a_full_server_lets_those_it_serves_open_again() -> None:
    verifier = Verifier(max_sessions=1)
    verifier.begin(opening(), go(credit=1))
    again = verifier.begin(opening(attempt=2), go(credit=1))
    verifier.settle()
    assert isinstance(verifier.last(again), Verdict)


def test_a_text_that_could_never_fit_is_refused_for_good() -> None:
    verifier = Verifier(num_blocks=10, block_size=4)
    error = verifier.refusal(opening(1, stop=most(38)))
    assert isinstance(error, PromptTooLong)
    assert not error.retryable
    assert "41" in error.message
    assert "--kv-tokens" in error.remedy
    fits = verifier.begin(opening(1, stop=most(37)), go())
    verifier.settle()
    assert verifier.text(fits) == MODEL.generate(PROMPT, 37)


def test_a_short_turn_after_a_long_one_leaves_others_room() -> None:
    verifier = Verifier(num_blocks=10, block_size=4)
    verifier.begin(opening(1, stop=most(33)), go())
    verifier.settle()
    verifier.begin(opening(1, (5,), attempt=2, generation=2, stop=most(3)))
    other = verifier.begin(opening(2, stop=most(33)), go())
    verifier.settle()
    assert verifier.text(other) == MODEL.generate(PROMPT, 33)
    verifier.check_books()


def test_rule_24_a_session_is_forgotten_when_its_time_is_up() -> None:
    verifier = Verifier(session_ttl_s=10.0)
    stream = verifier.begin(opening(stop=most(4)), go())
    assert verifier.engine.next_wakeup is None
    verifier.settle()
    assert verifier.engine.next_wakeup == 10.0
    verifier.now = 9.9
    verifier.step()
    assert len(verifier.engine.idle) == 1
    verifier.now = 10.0
    verifier.step()
    assert not verifier.engine.idle
    assert verifier.engine.pool.free == 100
    assert verifier.engine.next_wakeup is None
    text = (*PROMPT, *verifier.text(stream), 9)
    error = verifier.refusal(opening(prompt=text, prefix=7, attempt=2, generation=2))
    assert isinstance(error, SessionGone)
    assert error.session_id == opening().session_id.hex()


def test_rule_24_its_time_begins_when_its_client_has_gone() -> None:
    verifier = Verifier(session_ttl_s=10.0)
    stream = verifier.begin(opening(), go(credit=1))
    verifier.settle()
    verifier.now = 100.0
    verifier.send(stream, Detached())
    verifier.settle()
    verifier.now = 109.0
    verifier.step()
    assert len(verifier.engine.idle) == 1
    verifier.now = 110.0
    verifier.step()
    assert not verifier.engine.idle


def test_rule_24_a_session_in_flight_never_expires() -> None:
    verifier = Verifier(session_ttl_s=10.0)
    stream = verifier.begin(opening(), go(credit=1))
    verifier.settle()
    verifier.now = 1000.0
    verifier.send(stream, Draft(base=4, epoch=0, credit=1))
    verifier.settle()
    assert verifier.text(stream) == MODEL.generate(PROMPT, 2)


def test_a_silent_device_loses_its_stream_and_goes_on_with_another() -> None:
    verifier = Verifier(max_silence_s=30.0)
    stream = verifier.begin(opening(stop=most(9)), go(credit=4))
    verifier.settle()
    verifier.now = 29.0
    verifier.step()
    assert verifier.engine.active
    assert verifier.engine.next_wakeup == 30.0
    verifier.now = 30.0
    verifier.step()
    error = verifier.last(stream)
    assert isinstance(error, DeadlineExceeded)
    assert error.retryable
    assert not verifier.engine.active
    again = verifier.begin(opening(attempt=2, stop=most(9)), go())
    verifier.settle()
    assert verifier.text(again) == MODEL.generate(PROMPT, 9)


def test_a_device_that_is_heard_of_is_not_silent() -> None:
    verifier = Verifier(max_silence_s=30.0)
    stream = verifier.begin(opening(), go(credit=1))
    for _ in range(5):
        verifier.settle()
        verifier.now += 29.0
        length = len(PROMPT) + len(verifier.text(stream))
        verifier.send(stream, Draft(base=length, epoch=0, credit=1))
    verifier.settle()
    assert len(verifier.text(stream)) == 6


def test_a_generation_ends_when_its_time_is_up_and_does_not_begin_again() -> None:
    verifier = Verifier(max_generation_s=10.0, fixed_s=1.0)
    stream = verifier.begin(opening(), go())
    for _ in range(11):
        verifier.step()
    error = verifier.last(stream)
    assert isinstance(error, LimitExceeded)
    assert not error.retryable
    assert "--max-generation-time" in str(error)
    assert verifier.text(stream)[:9] == MODEL.generate(PROMPT, 9)
    assert isinstance(verifier.refusal(opening(attempt=2), go()), LimitExceeded)


def test_no_more_sessions_are_kept_than_allowed() -> None:
    verifier = Verifier(max_retained=2)
    for name in range(1, 5):
        verifier.begin(opening(name, stop=most(2)), go())
        verifier.settle()
    verifier.step()
    assert [int.from_bytes(name) for name in verifier.engine.idle] == [3, 4]


def test_a_stream_that_ends_late_leaves_the_session_that_took_its_ones_place() -> None:
    verifier = Verifier(max_retained=1)
    old = verifier.begin(opening(1, stop=most(2)), go())
    verifier.settle()
    verifier.begin(opening(2, stop=most(2)), go())  # for which the first one is forgotten
    verifier.settle()
    verifier.step()
    assert opening(1).session_id not in verifier.engine.idle
    new = verifier.begin(opening(1, attempt=2, stop=most(5)), go())
    verifier.step()
    verifier.send(old, Detached())
    verifier.settle()
    assert verifier.text(new) == MODEL.generate(PROMPT, 5)


def test_a_draining_engine_admits_nothing_and_finishes_what_it_has() -> None:
    verifier = Verifier()
    stream = verifier.begin(opening(1, stop=most(5)), go())
    verifier.step()
    verifier.engine.draining = True
    error = verifier.refusal(opening(2))
    assert isinstance(error, Draining)
    assert error.retryable
    verifier.settle()
    assert verifier.text(stream) == MODEL.generate(PROMPT, 5)


# ------------------------------------------------------------------ refused by name


@pytest.mark.parametrize(
    ("change", "kind", "named"),
    [
        ({"protocol_version": 2}, ProtocolVersion, "version 2"),
        ({"model": "other"}, ModelNotFound, "'other'"),
        ({"expected_target": b"\xab\xcd"}, ModelChanged, "abcd"),
        ({"vocabulary_fingerprint": b"\xab\xcd"}, VocabularyMismatch, "abcd"),
        ({"grammar": Grammar(kind="regex", text="a*")}, UnsupportedParameter, "grammar"),
        ({"logprobs": 22}, InvalidRequest, "at most 20"),
        ({"sampling": SamplingParams(logit_bias={50: 1})}, InvalidRequest, "logit_bias holds"),
        (
            {"stop": StopRules(min_tokens=1, token_ids=range(1, 50))},
            InvalidRequest,
            "min_tokens leaves no token",
        ),
        ({"required_features": ("trees",)}, UnsupportedParameter, "'trees'"),
        ({"stop": StopRules(token_ids=(50,))}, InvalidRequest, "stop token ids holds token 50"),
    ],
)
def test_what_is_not_served_is_refused_by_name_before_any_work(
    change: dict[str, Any], kind: type[DraftwireError], named: str
) -> None:
    verifier = Verifier()
    error = verifier.refusal(opening(**change), go())
    assert type(error) is kind
    assert named in error.message
    assert error.remedy
    assert error.session_id == opening().session_id.hex()
    assert verifier.target.passes == []
    assert not verifier.engine.active
    assert not verifier.engine.idle
    assert verifier.engine.pool.held == 0


def test_all_that_is_refused_is_named_at_once() -> None:
    error = Verifier().refusal(
        opening(
            required_features=("trees", "telepathy"),
            grammar=Grammar(kind="regex", text="a*"),
        )
    )
    for name in ("grammar", "trees", "telepathy"):
        assert name in error.message


@pytest.mark.parametrize(
    "draft",
    [
        Draft(base=3, epoch=0, tokens=(1,), parents=(0,)),
        Draft(
            base=3,
            epoch=0,
            tokens=(1,),
            q=(CompactDistribution(tokens=(1,), weights=b"\x01"),),
        ),
    ],
    ids=["tree", "q"],
)
def test_drafts_of_modes_not_served_are_refused(draft: Draft) -> None:
    assert isinstance(Verifier().refusal(opening(), draft), UnsupportedParameter)


def test_a_mode_that_is_not_served_is_refused_by_name() -> None:
    card = replace(Verifier().engine.card, verify_modes=(VerifyMode.MATCH,))
    with pytest.raises(UnsupportedParameter, match=r"rejection \(served: match\)"):
        check_open(opening(mode=VerifyMode.REJECTION), card)


ONE = CompactDistribution(tokens=(1,), weights=b"\x01")


@pytest.mark.parametrize(
    ("tokens", "q", "named"),
    [
        ((1, 2), (ONE,), "2 drafts came with 1"),
        ((2,), (ONE,), "draft 2 has no weight"),
        ((1,), (CompactDistribution(tokens=(1, 50), weights=b"\x01\x01"),), "holds token 50"),
    ],
)
def test_a_distribution_that_a_draft_can_not_come_from_is_refused_before_any_pass(
    tokens: Tokens, q: tuple[CompactDistribution, ...], named: str
) -> None:
    verifier = Verifier()
    draft = Draft(base=3, epoch=0, tokens=tokens, q=q)
    error = verifier.refusal(opening(mode=VerifyMode.REJECTION), draft)
    assert isinstance(error, InvalidRequest)
    assert named in error.message
    assert verifier.target.passes == []


@pytest.mark.parametrize(
    "frames",
    [
        (opening(prompt=(5, 50)),),
        (opening(), Draft(base=3, epoch=0, tokens=(1, 50))),
    ],
    ids=["prompt", "draft"],
)
def test_a_token_outside_the_vocabulary_never_reaches_the_target(
    frames: tuple[ClientFrame, ...],
) -> None:
    verifier = Verifier()
    error = verifier.refusal(*frames)
    assert isinstance(error, InvalidRequest)
    assert "50" in error.message
    assert verifier.target.passes == []


@pytest.mark.parametrize(("length", "fits"), [(9, True), (10, False), (11, False)])
def test_a_prompt_must_leave_room_for_one_token(length: int, fits: bool) -> None:
    verifier = Verifier(max_context=10)
    prompt = range(1, length + 1)
    stream = verifier.begin(opening(prompt=prompt), go(prompt))
    verifier.settle()
    last = verifier.last(stream)
    if fits:
        assert isinstance(last, Finished)
        assert verifier.text(stream) == MODEL.generate(prompt, 1)
    else:
        assert isinstance(last, PromptTooLong)
        assert str(length) in last.message


# ------------------------------------------------------------------ all at once


class Device:
    """A client without a network: drafts, and opens again after whatever went wrong."""

    def __init__(self, verifier: Verifier, name: int, rng: random.Random) -> None:
        self.verifier, self.name, self.rng = verifier, name, rng
        self.drafter = MODEL.perturbed(0.1, seed=name)
        self.text = [1 + name]
        self.attempt = self.generation = 0
        self.texts = 0
        self.turn()

    def turn(self) -> None:
        rng = self.rng
        if rng.random() < 0.3:
            del self.text[rng.randint(1, len(self.text)) :]
        self.text = [*self.text[:40], *(rng.randint(1, 49) for _ in range(rng.randint(1, 8)))]
        self.generation += 1
        self.start, self.most = len(self.text), rng.randint(1, 30)
        self.open()

    def open(self) -> None:
        self.attempt += 1
        self.stream = self.verifier.begin(
            opening(
                self.name,
                tuple(self.text),
                attempt=self.attempt,
                generation=self.generation,
                start=self.start,
                stop=most(self.most),
            )
        )
        self.epoch = 0
        self.sent: list[int] = []
        self.draft()

    def draft(self) -> None:
        self.sent = self.drafter.generate(self.text, self.rng.randint(0, 6))
        self.verifier.send(
            self.stream,
            Draft(base=len(self.text), epoch=self.epoch, tokens=self.sent, credit=1),
        )

    def listen(self) -> None:
        for item in self.verifier.heard.pop(self.stream, ()):
            match item:
                case Verdict():
                    assert item.base == len(self.text)
                    self.text += [*self.sent[: item.accepted], *item.next]
                    self.epoch += item.accepted < len(self.sent)
                    self.sent = []
                case Finished():
                    prompt = self.text[: self.start]
                    assert self.text[self.start :] == MODEL.generate(prompt, self.most)
                    self.texts += 1
                    self.turn()
                    return
                case ServerFull():
                    self.sent = []
                    self.open()
                    return
                case DraftwireError():
                    raise item
        if self.rng.random() < 0.02:
            self.verifier.send(self.stream, Detached())
            self.open()
        elif not self.sent:
            self.draft()


@pytest.mark.parametrize("seed", range(3))
def test_texts_are_right_though_kv_is_short_and_sessions_come_and_go(seed: int) -> None:
    rng = random.Random(seed)
    verifier = Verifier(
        max_context=80,
        num_blocks=25,
        block_size=4,
        max_batch_tokens=rng.choice([7, 40]),
        max_sessions=6,
        max_retained=5,
        session_ttl_s=40,
    )
    devices = [Device(verifier, name, rng) for name in range(8)]
    for _ in range(250):
        verifier.now += 1
        verifier.step()
        verifier.check_books()
        for device in rng.sample(devices, len(devices)):
            device.listen()
    assert min(device.texts for device in devices) > 0
    assert sum(device.texts for device in devices) > 15
    assert verifier.recorder.preemptions > 10
