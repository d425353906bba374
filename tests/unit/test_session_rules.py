"""The verifier's session, rule by rule. Numbers are those of docs/protocol.md."""

from __future__ import annotations

from typing import Any

import pytest

from cloud_verifier.sessions import Session, Stream
from cloud_verifier.target import Judgement
from draftwire.errors import (
    DraftwireError,
    LimitExceeded,
    ProtocolViolation,
    SessionGone,
    Superseded,
)
from draftwire.types import (
    CompactDistribution,
    Draft,
    Finished,
    FinishReason,
    History,
    ModelCard,
    Open,
    Opened,
    SamplingParams,
    ServerFrame,
    ServingLimits,
    StopRules,
    TargetIdentity,
    Timing,
    Tokens,
    Usage,
    Verdict,
    VerifyMode,
    history_hash,
)

EOS = 0
PROMPT = (5, 6, 7)
CARD = ModelCard(
    target=TargetIdentity(
        model="toy",
        digest=b"weights",
        dtype="float32",
        vocabulary_fingerprint=b"vocabulary",
        noise_version=1,
        eos_token_ids=(EOS,),
    ),
    limits=ServingLimits(max_context=40, max_pending=8, max_credit=9, max_rows=5),
    vocabulary_size=100,
)


def opening(tokens: Tokens = PROMPT, *, prefix: int = 0, **changes: Any) -> Open:
    """An open for a prompt, or for what `changes` say; `prefix` tokens go by hash."""
    history = History(
        tokens=tuple(tokens[prefix:]),
        prefix_length=prefix,
        prefix_hash=history_hash(tokens[:prefix]),
    )
    values: dict[str, Any] = {
        "session_id": bytes(16),
        "attempt": 1,
        "generation": 1,
        "start": len(PROMPT),
        "vocabulary_fingerprint": b"vocabulary",
    }
    return Open(history=history, **(values | changes))


def attach(session: Session, frame: Open) -> list[ServerFrame]:
    history = session.resolve(frame)
    session.open(frame, history, Stream())
    return session.greeting(len(history))  # the session's KV is the engine's business


def opened(tokens: Tokens = PROMPT, **changes: Any) -> Session:
    """A session that has just been opened."""
    session = Session(bytes(16), "", CARD)
    attach(session, opening(tokens, **changes))
    return session


def draft(session: Session, base: int, *tokens: int, epoch: int = 0, credit: int = 0) -> None:
    session.draft(Draft(base=base, epoch=epoch, tokens=tokens, credit=credit))


def judge(session: Session, judged: int, accepted: int, token: int) -> list[ServerFrame]:
    return session.commit(judged, Judgement(accepted, token), Timing())


def write(session: Session, *tokens: int) -> None:
    """The target commits these, one pass each."""
    for token in tokens:
        judge(session, 0, 0, token)


def finished(frames: list[ServerFrame]) -> Finished:
    assert isinstance(frames[-1], Finished)
    return frames[-1]


# ------------------------------------------------------------------ opening


@pytest.mark.parametrize("attempt", [1, 2, 3])
def test_rule_3_an_attempt_not_above_the_known_one_is_superseded(attempt: int) -> None:
    session = opened(attempt=3)
    with pytest.raises(Superseded) as refused:
        session.resolve(opening(attempt=attempt))
    assert not refused.value.retryable


@pytest.mark.parametrize(
    "history",
    [
        History(tokens=(), prefix_length=4, prefix_hash=history_hash((5, 6, 7, 8))),
        History(tokens=(8,), prefix_length=3, prefix_hash=history_hash((5, 6, 9))),
    ],
    ids=["more than the session holds", "another hash"],
)
def test_rule_3_an_unknown_prefix_is_gone(history: History) -> None:
    session = opened()
    unknown = opening(attempt=2)
    object.__setattr__(unknown, "history", history)
    with pytest.raises(SessionGone) as gone:
        session.resolve(unknown)
    assert gone.value.retryable


def test_rule_3_a_known_prefix_stands_for_its_tokens() -> None:
    session = opened()
    write(session, 8, 9)
    again = opening((*PROMPT, 8, 9, 10), prefix=4, attempt=2)
    assert session.resolve(again) == [5, 6, 7, 8, 9, 10]


def test_rule_4_an_open_clears_pending_and_credit_and_anchors_at_the_history() -> None:
    session = opened()
    draft(session, 3, 8, 9, credit=5)
    write(session)
    attach(session, opening(attempt=2))
    assert session.pending == []
    assert (session.credit, session.anchor) == (0, 3)
    assert not session.ready


def test_rule_4_epochs_belong_to_a_stream_and_so_does_the_dead_one() -> None:
    session = opened()
    draft(session, 3, 8, 9, epoch=7)
    judge(session, 2, 0, 50)
    attach(session, opening((*PROMPT, 50), attempt=2))
    draft(session, 4, 51, epoch=0)
    assert session.pending == [51]


def test_rule_5_the_same_generation_goes_on_and_replays_what_was_missed() -> None:
    session = opened()
    write(session, 8, 9, 10)
    frames = attach(session, opening((*PROMPT, 8), attempt=2))
    assert frames == [
        Opened(target=CARD.target, limits=CARD.limits, length=6, cached=5),
        Verdict(base=4, accepted=0, next=(9, 10)),
    ]
    assert session.tokens == [*PROMPT, 8, 9, 10]


def test_rule_5_nothing_is_replayed_when_nothing_was_missed() -> None:
    session = opened()
    write(session, 8)
    (frame,) = attach(session, opening((*PROMPT, 8), attempt=2))
    assert isinstance(frame, Opened)
    assert frame.length == 4


@pytest.mark.parametrize(
    "change",
    [
        {"generation": 2},
        {"start": 4},
        {"sampling": SamplingParams(temperature=0.5)},
        {"sampling": SamplingParams(seed=1)},
        {"stop": StopRules(max_tokens=20)},
        {"stop": StopRules(token_ids=(50,))},
    ],
    ids=["generation", "start", "parameters", "seed", "max_tokens", "stop tokens"],
)
def test_rule_5_anything_else_begins_a_new_generation(change: dict[str, Any]) -> None:
    session = opened()
    write(session, 8, 9, 10)
    frames = attach(session, opening((*PROMPT, 8), attempt=2, **change))
    assert [type(frame) for frame in frames] == [Opened]
    assert session.tokens == [*PROMPT, 8]
    assert session.passes == 0


def test_rule_5_a_new_turn_replaces_what_differs() -> None:
    session = opened()
    write(session, 8, 9, 10)
    attach(session, opening((5, 6, 7, 8, 20, 21), attempt=2, generation=2, start=6))
    assert session.tokens == [5, 6, 7, 8, 20, 21]


def test_rule_5_a_history_that_is_not_a_prefix_begins_anew_in_the_same_generation() -> None:
    session = opened()
    write(session, 8, 9, 10)
    attach(session, opening((*PROMPT, 8, 20), attempt=2))
    assert session.tokens == [*PROMPT, 8, 20]


@pytest.mark.parametrize(
    ("output", "stop", "reason", "kept"),
    [
        ((8, EOS), StopRules(), FinishReason.STOP, 2),
        ((8, 50), StopRules(token_ids=(50,)), FinishReason.STOP, 2),
        ((8, 9), StopRules(max_tokens=2), FinishReason.LENGTH, 2),
        ((8, EOS, 9, 10), StopRules(), FinishReason.STOP, 2),
        ((8, 9, 10), StopRules(max_tokens=2), FinishReason.LENGTH, 2),
        ((8, EOS), StopRules(max_tokens=2), FinishReason.STOP, 2),
        (tuple(range(1, 40)), StopRules(), FinishReason.LENGTH, 37),
    ],
    ids=["end", "stop token", "max_tokens", "past the end", "past max", "both", "context"],
)
def test_rule_6_stop_rules_hold_for_the_history_from_start(
    output: Tokens, stop: StopRules, reason: FinishReason, kept: int
) -> None:
    session = Session(bytes(16), "", CARD)
    end = finished(attach(session, opening((*PROMPT, *output), stop=stop)))
    assert (end.reason, end.length) == (reason, 3 + kept)
    assert session.tokens == [*PROMPT, *output[:kept]]
    assert session.kv.length < len(session.tokens)


def test_rule_6_an_end_token_in_the_prompt_ends_nothing() -> None:
    session = Session(bytes(16), "", CARD)
    prompt = (5, EOS, 7)
    assert [type(frame) for frame in attach(session, opening(prompt))] == [Opened]


def test_rule_6_what_comes_after_the_end_is_cut_off() -> None:
    session = opened()
    write(session, 8, 50, 9, 10)
    stop = StopRules(token_ids=(50,))
    attach(session, opening((*PROMPT, 8, 50, 9, 10), attempt=2, stop=stop))
    assert session.tokens == [*PROMPT, 8, 50]


@pytest.mark.parametrize("held", [3, 4, 5])
def test_case_verdict_received_but_finished_lost(held: int) -> None:
    session = opened(stop=StopRules(max_tokens=2))
    write(session, 8, 9)
    text = (*PROMPT, 8, 9)
    frames = attach(session, opening(text[:held], attempt=2, stop=StopRules(max_tokens=2)))
    replayed = [frame for frame in frames if isinstance(frame, Verdict)]
    assert [token for verdict in replayed for token in verdict.next] == list(text[held:])
    assert finished(frames).reason is FinishReason.LENGTH


def test_case_cancelled_then_run_again() -> None:
    session = opened()
    write(session, 8)
    session.cancel()
    again = attach(session, opening((*PROMPT, 8), attempt=2))
    assert finished(again).reason is FinishReason.CANCELLED
    anew = attach(session, opening((*PROMPT, 8), attempt=3, generation=2, start=4))
    assert [type(frame) for frame in anew] == [Opened]
    draft(session, 4, credit=1)
    assert session.ready


def test_case_the_client_has_more_and_sends_it_whole() -> None:
    session = opened()
    attach(session, opening((*PROMPT, 8, 9), attempt=2))
    assert session.tokens == [*PROMPT, 8, 9]


# ------------------------------------------------------------------ drafts


@pytest.mark.parametrize(
    ("base", "epoch"),
    [(8, 2), (6, 2), (5, 2), (7, 1)],
    ids=["above tip", "inside pending", "at S with drafts pending", "epoch back"],
)
def test_rule_12_a_draft_out_of_place_is_a_violation(base: int, epoch: int) -> None:
    session = opened()
    write(session, 8, 9)
    draft(session, 5, 10, 11, epoch=2)
    with pytest.raises(ProtocolViolation):
        draft(session, base, 12, epoch=epoch)


@pytest.mark.parametrize("tokens", [(), (7,)])
def test_rule_12_a_draft_below_start_is_a_violation(tokens: Tokens) -> None:
    session = opened()
    write(session, 8)
    with pytest.raises(ProtocolViolation):
        draft(session, 2, *tokens)


def test_rule_12_a_gap_is_a_violation_though_nothing_is_pending() -> None:
    session = opened()
    with pytest.raises(ProtocolViolation):
        draft(session, 4, credit=1)


def test_rule_12_a_dead_epochs_frames_are_dropped_with_their_credit() -> None:
    session = opened()
    draft(session, 3, 8, 9)
    judge(session, 2, 0, 50)
    for base in (0, 4, 5, 30):  # wherever it stands: its epoch decides
        draft(session, base, 51, credit=9)
    assert session.pending == []
    assert session.credit == 0
    assert not session.ready


def test_case_a_dead_branchs_base_equals_the_committed_length() -> None:
    session = opened()
    draft(session, 3, 8)
    judge(session, 1, 0, 50)
    draft(session, 4, 9)  # follows 8, not 50
    assert session.pending == []
    draft(session, 4, 51, epoch=1)
    assert session.pending == [51]


def test_rule_12_a_higher_epoch_replaces_the_current_one() -> None:
    session = opened()
    draft(session, 3, 8, 9, credit=4)
    draft(session, 3, 10, epoch=1)
    assert (session.pending, session.credit, session.anchor) == ([10], 0, 4)


def test_rule_13_equal_overlap_is_skipped_and_the_rest_waits() -> None:
    session = opened()
    write(session, 8, 9)
    draft(session, 3, 8, 9, 10, 11, credit=2)
    assert (session.pending, session.credit, session.anchor) == ([10, 11], 2, 7)


@pytest.mark.parametrize(("credit", "ready"), [(0, False), (1, True)])
def test_case_overlap_all_equal_ending_at_the_committed_length(credit: int, ready: bool) -> None:
    session = opened()
    write(session, 8, 9)
    draft(session, 3, 8, 9, credit=credit)
    assert session.pending == []
    assert session.ready is ready


def test_case_a_draft_arrives_for_positions_that_credit_already_filled() -> None:
    session = opened()
    write(session, 8, 9, 10)
    draft(session, 3, 8, credit=1)
    assert session.pending == []
    assert not session.ready  # position 4 is filled too


def test_rule_13_unequal_overlap_kills_the_epoch_and_voids_the_frame() -> None:
    session = opened()
    write(session, 8, 9)
    draft(session, 3, 8, 77, 10, credit=9)
    assert session.pending == []
    assert not session.ready
    draft(session, 5, 11, credit=9)  # of the same epoch
    assert session.pending == []
    assert not session.ready


def test_case_frame_void_and_its_credit_stated_again_after_the_rollback() -> None:
    session = opened()
    write(session, 8)
    draft(session, 3, 77, credit=2)
    draft(session, 4, epoch=1, credit=2)
    assert (session.credit, session.anchor) == (2, 4)
    assert session.ready


@pytest.mark.parametrize("credit", [0, 1, 3])
def test_rule_13_credit_is_replaced_not_added(credit: int) -> None:
    session = opened()
    draft(session, 3, credit=9)
    draft(session, 3, credit=credit)
    assert session.credit == credit
    assert session.anchor == 3


def test_rule_14_own_tokens_come_up_to_anchor_plus_credit_and_only_with_nothing_pending() -> None:
    session = opened()
    draft(session, 3, credit=2)
    written = 0
    while session.ready:
        write(session, 8)
        written += 1
    assert written == 2


@pytest.mark.parametrize(
    ("stated", "within"), [((8, 0), True), ((9, 0), False), ((0, 9), True), ((0, 10), False)]
)
def test_rule_25_more_pending_drafts_or_credit_than_allowed_is_an_error(
    stated: tuple[int, int], within: bool
) -> None:
    session = opened()
    tokens, credit = stated
    if within:
        draft(session, 3, *range(tokens), credit=credit)
    else:
        with pytest.raises(LimitExceeded):
            draft(session, 3, *range(tokens), credit=credit)


def test_rule_25_the_limit_holds_for_what_waits_not_for_a_frame() -> None:
    session = opened()
    draft(session, 3, 8, 9, 10, 11, 12, 13)
    with pytest.raises(LimitExceeded):
        draft(session, 9, 14, 15, 16)


def test_rule_25_what_overlaps_committed_tokens_does_not_count() -> None:
    session = opened()
    write(session, 8, 9)
    draft(session, 3, 8, 9, *range(10, 18))
    assert len(session.pending) == 8


# ------------------------------------------------------------------ verdicts


def test_rule_16_a_correction_is_committed_without_credit_and_kills_the_epoch() -> None:
    session = opened()
    draft(session, 3, 8, 9, 10)
    assert judge(session, 3, 1, 50) == [Verdict(base=3, accepted=1, next=(50,))]
    assert session.tokens == [*PROMPT, 8, 50]
    assert session.pending == []
    draft(session, 5, 51)
    assert session.pending == []


def test_rule_16_a_rejection_takes_along_what_was_not_yet_judged() -> None:
    session = opened()
    draft(session, 3, 8, 9, 10, 11, 12)
    judge(session, 2, 1, 50)
    assert session.pending == []


def test_rule_16_full_acceptance_gives_a_bonus_token_with_credit_only() -> None:
    without = opened()
    draft(without, 3, 8, 9, credit=0)
    assert judge(without, 2, 2, 50) == [Verdict(base=3, accepted=2, next=())]
    assert without.tokens == [*PROMPT, 8, 9]
    having = opened()
    draft(having, 3, 8, 9, credit=1)
    assert judge(having, 2, 2, 50) == [Verdict(base=3, accepted=2, next=(50,))]
    assert having.tokens == [*PROMPT, 8, 9, 50]


def test_rule_16_rejection_gives_a_bonus_token_only_with_nothing_pending() -> None:
    session = opened(mode=VerifyMode.REJECTION)
    draft(session, 3, 8, 9, 10, credit=1)
    assert judge(session, 2, 2, 50) == [Verdict(base=3, accepted=2, next=())]
    assert session.pending == [10]
    assert session.ready
    assert judge(session, 1, 1, 50) == [Verdict(base=5, accepted=1, next=(50,))]


def test_what_a_draft_was_drawn_from_stays_with_it() -> None:
    session = opened(mode=VerifyMode.REJECTION)
    q = [CompactDistribution(tokens=(token,), weights=b"\x07") for token in (8, 9, 10)]
    write(session, 8)
    session.draft(Draft(base=3, epoch=0, tokens=(8, 9, 10), q=q))
    draft(session, 6, 11)
    assert session.stated == [*q[1:], None]
    judge(session, 1, 1, 50)
    assert (session.pending, session.stated) == ([10, 11], [q[2], None])
    judge(session, 2, 0, 50)
    assert session.stated == []


def test_another_mode_is_another_generation() -> None:
    session = opened(mode=VerifyMode.REJECTION)
    write(session, 8)
    attach(session, opening(attempt=2, mode=VerifyMode.MATCH))
    assert session.tokens == list(PROMPT)


def test_rule_16_a_bonus_that_equals_the_next_pending_draft_takes_its_place() -> None:
    session = opened()
    draft(session, 3, 8, 9)
    draft(session, 5, 10, 11, credit=1)
    assert judge(session, 2, 2, 10) == [Verdict(base=3, accepted=2, next=(10,))]
    assert session.pending == [11]
    draft(session, 7, 12)  # the epoch lives
    assert session.pending == [11, 12]


def test_case_the_bonus_differs_from_a_chunk_in_flight() -> None:
    session = opened()
    draft(session, 3, 8, 9)
    draft(session, 5, 10, 11, credit=1)
    judge(session, 2, 2, 50)
    assert session.pending == []
    draft(session, 7, 12, credit=9)  # was under way
    assert session.pending == []
    draft(session, 6, 51, epoch=1)
    assert session.pending == [51]


@pytest.mark.parametrize("credit", [0, 1, 2, 4])
def test_rules_14_and_16_after_a_rejection_the_anchor_ends_the_accepted_prefix(
    credit: int,
) -> None:
    session = opened()
    draft(session, 3, 8, 9, 10, credit=credit)
    judge(session, 3, 1, 50)
    assert session.anchor == 4
    more = 0
    while session.ready:
        write(session, 51)
        more += 1
    assert more == max(0, credit - 1)  # the correction took one


def test_rules_14_and_16_run_on_after_full_acceptance() -> None:
    session = opened()
    draft(session, 3, 8, 9, credit=4)
    judge(session, 2, 2, 50)
    more = 0
    while session.ready:
        write(session, 51)
        more += 1
    assert more == 3  # the bonus took one


def test_rule_17_a_recovery_draw_that_equals_the_draft_counts_as_accepted() -> None:
    session = opened()
    draft(session, 3, 8, 9, 10)
    assert judge(session, 3, 1, 9) == [Verdict(base=3, accepted=2, next=())]
    assert session.tokens == [*PROMPT, 8, 9]
    assert session.kv.length == 4
    assert session.pending == [10]  # follows 9, and is judged anew
    draft(session, 6, 11)
    assert session.pending == [10, 11]


@pytest.mark.parametrize(
    ("drafts", "accepted", "token", "verdict"),
    [
        ((8, EOS, 10), 3, 60, Verdict(base=3, accepted=2, next=())),
        ((8, 9, 10), 1, EOS, Verdict(base=3, accepted=1, next=(EOS,))),
        ((8,), 1, EOS, Verdict(base=3, accepted=1, next=(EOS,))),
    ],
    ids=["inside the accepted", "the correction", "the bonus"],
)
def test_rule_18_an_end_token_cuts_the_verdict(
    drafts: Tokens, accepted: int, token: int, verdict: Verdict
) -> None:
    session = opened()
    draft(session, 3, *drafts, credit=1)
    frames = judge(session, len(drafts), accepted, token)
    assert frames[0] == verdict
    assert finished(frames).reason is FinishReason.STOP
    assert finished(frames).length == len(session.tokens) == 5
    assert session.tokens[-1] == EOS


@pytest.mark.parametrize(
    ("most", "verdict"),
    [
        (1, Verdict(base=3, accepted=1, next=())),
        (2, Verdict(base=3, accepted=2, next=())),
        (3, Verdict(base=3, accepted=2, next=(50,))),
    ],
)
def test_rule_18_max_tokens_cuts_the_verdict(most: int, verdict: Verdict) -> None:
    session = opened(stop=StopRules(max_tokens=most))
    draft(session, 3, 8, 9, credit=1)
    frames = judge(session, 2, 2, 50)
    assert frames[0] == verdict
    assert finished(frames).reason is FinishReason.LENGTH
    assert finished(frames).length == 3 + most


def test_rule_18_an_end_token_in_the_last_place_is_a_stop() -> None:
    session = opened(stop=StopRules(max_tokens=2))
    draft(session, 3, 8, EOS)
    assert finished(judge(session, 2, 2, 50)).reason is FinishReason.STOP


def test_rule_18_ignore_eos_leaves_the_stop_tokens_asked_for() -> None:
    session = opened(stop=StopRules(ignore_eos=True, token_ids=(50,)))
    draft(session, 3, 8, EOS, 9, credit=1)
    assert finished(judge(session, 3, 3, 50)).length == 7


def test_rule_18_frames_after_the_end_are_ignored() -> None:
    session = opened(stop=StopRules(max_tokens=1))
    write(session, 8)
    draft(session, 4, 9, credit=5)
    draft(session, 77, 9, credit=500)  # not even judged for its place
    assert session.pending == []
    assert not session.ready
    assert session.cancel() == []


def test_rule_19_the_base_is_the_committed_length_before_the_pass_not_the_drafts() -> None:
    session = opened()
    write(session, 8, 9)
    draft(session, 3, 8, 9, 10, 11)
    assert judge(session, 2, 2, 50) == [Verdict(base=5, accepted=2, next=())]


@pytest.mark.parametrize(
    ("drafts", "credit", "accepted"), [(0, 1, 0), (3, 0, 0), (3, 0, 2), (3, 0, 3), (3, 1, 3)]
)
def test_rule_20_after_a_commit_the_last_token_is_owed(
    drafts: int, credit: int, accepted: int
) -> None:
    session = opened()
    draft(session, 3, *(8, 9, 10)[:drafts], credit=credit)
    judge(session, drafts, accepted, 50)
    expected = min(3 + accepted, len(session.tokens) - 1)
    assert session.kv.length == expected < len(session.tokens)


# ------------------------------------------------------------------ ending


def test_rule_23_cancel_ends_between_passes_and_keeps_what_is_committed() -> None:
    session = opened()
    write(session, 8)
    draft(session, 4, 9, 10, credit=3)
    end = finished(session.cancel())
    assert (end.reason, end.length) == (FinishReason.CANCELLED, 4)
    assert session.pending == []
    assert not session.ready
    assert session.cancel() == []


def test_rule_23_a_detached_session_starts_no_pass_and_keeps_its_tokens() -> None:
    session = opened()
    write(session, 8)
    draft(session, 4, 9, credit=5)
    session.detach()
    assert session.stream is None
    assert not session.ready
    assert session.tokens == [*PROMPT, 8]
    assert session.kv.length == 3


def test_case_cut_while_a_pass_runs() -> None:
    session = opened()
    draft(session, 3, 8, 9, credit=1)
    judge(session, 2, 2, 10)  # the verdict is lost with the stream
    session.detach()
    frames = attach(session, opening(attempt=2))
    assert frames[1:] == [Verdict(base=3, accepted=0, next=(8, 9, 10))]


def test_finished_reports_what_the_generation_took() -> None:
    session = opened(stop=StopRules(max_tokens=5))
    draft(session, 3, 8, 9, credit=1)
    judge(session, 2, 2, 10)
    draft(session, 6, 11, 12)
    end = finished(judge(session, 2, 1, 50))
    assert end.usage == Usage(
        prompt_tokens=3, completion_tokens=5, passes=2, drafted=4, accepted=3, cached_tokens=0
    )


def test_opened_says_what_is_cached_now_not_what_was_when_the_generation_began() -> None:
    session = opened()
    write(session, 8, 9, 10)
    session.kv.length = 0  # evicted while nobody was attached
    session.detach()
    frames = attach(session, opening((*PROMPT, 8, 9, 10), attempt=2))
    assert isinstance(frames[0], Opened)
    assert frames[0].cached == 0


@pytest.mark.parametrize("error", [Superseded, SessionGone, ProtocolViolation, LimitExceeded])
def test_what_ends_a_stream_has_words_for_a_person(error: type[DraftwireError]) -> None:
    session = opened(attempt=2)
    provoke = {
        Superseded: lambda: session.resolve(opening(attempt=2)),
        SessionGone: lambda: session.resolve(opening((*PROMPT, 8), prefix=4, attempt=3)),
        ProtocolViolation: lambda: draft(session, 30, 1),
        LimitExceeded: lambda: draft(session, 3, credit=99),
    }[error]
    with pytest.raises(error, match=r"\d"):  # names the numbers that disagree
        provoke()
