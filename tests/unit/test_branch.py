"""The client's text, rule by rule. Numbers are those of docs/protocol.md."""

from __future__ import annotations

import pytest

from draftwire.errors import InvalidRequest, ProtocolViolation
from draftwire.types import (
    CompactDistribution,
    Draft,
    ServingLimits,
    Tokens,
    Verdict,
    VerifyMode,
)
from edge_client.branch import Branch, Commit, Origin
from edge_client.plan import Plan

LIMITS = ServingLimits(max_context=100, max_pending=6, max_credit=10)
PIPELINED = Plan(window=4, chunk=2, credit=1, pipelined=True)
WAITING = Plan.waiting(3)
CLOUD = Plan.cloud_alone(8)


def branch(*drafted: int, sent: int = 0, credit: int = 1) -> Branch:
    """Three committed tokens, a tail, and how much of it is on the wire."""
    branch = Branch([1, 2, 3], agreed=3)
    for token in drafted:
        branch.push(token, token / 100)
    if sent:
        branch.take(sent, credit)
    return branch


def verdict(base: int, accepted: int, *following: int) -> Verdict:
    return Verdict(base=base, accepted=accepted, next=following)


def tokens(commits: list[Commit]) -> list[int]:
    return [token for token, _ in commits]


# ------------------------------------------------------------------ sending


def test_rule_9_a_base_is_committed_plus_what_of_the_tail_is_sent() -> None:
    ours = branch(10, 11, 12, 13, 14)
    assert ours.take(2, 1) == Draft(base=3, epoch=0, tokens=(10, 11), credit=1)
    assert ours.take(2, 4) == Draft(base=5, epoch=0, tokens=(12, 13), credit=4)
    assert ours.take(0, 2) == Draft(base=7, epoch=0, tokens=(), credit=2)
    assert (ours.sent, ours.unsent, ours.granted) == (4, 1, 9)


def test_rule_9_each_token_is_sent_once_an_epoch() -> None:
    ours = branch(10, 11, 12)
    sent = [*ours.take(2, 1).tokens, *ours.take(2, 1).tokens, *ours.take(2, 1).tokens]
    assert sent == [10, 11, 12]


def test_in_rejection_mode_drafts_in_flight_carry_no_credit_and_what_they_came_from() -> None:
    ours = Branch([1, 2, 3], agreed=3, mode=VerifyMode.REJECTION)
    q = CompactDistribution(tokens=(10, 12), weights=b"\x01\x02")
    ours.push(10, 0.5, q)
    ours.push(11, 0.5)
    frame = ours.due(PIPELINED, LIMITS, more=True)
    one_hot = CompactDistribution(tokens=(11,), weights=b"\x01")
    assert frame == Draft(base=3, epoch=0, tokens=(10, 11), credit=0, q=(q, one_hot))
    ours.push(13, 0.5)
    assert ours.due(PIPELINED, LIMITS, more=False) == Draft(base=5, epoch=0, tokens=(13,), credit=1)
    ours.apply(verdict(3, 1))
    assert ours.stated == [None, None]
    ours.apply(verdict(4, 0, 50))
    assert ours.stated == []


def test_rule_10_only_unsent_drafts_may_be_dropped() -> None:
    ours = branch(10, 11, 12, sent=2)
    forks = ours.forks
    ours.drop_unsent()
    assert ours.tail == [10, 11]
    assert ours.confidences == [0.10, 0.11]
    assert (ours.sent, ours.epoch, ours.forks) == (2, 0, forks + 1)
    ours.drop_unsent()
    assert (ours.tail, ours.forks) == ([10, 11], forks + 1)


def test_rule_8_a_new_stream_knows_nothing_of_what_the_old_one_was_sent() -> None:
    ours = branch(10, 11, sent=1, credit=5)
    ours.epoch = 3
    ours.new_stream()
    assert (ours.sent, ours.epoch, ours.granted) == (0, 0, 0)
    assert ours.take(2, 1) == Draft(base=3, epoch=0, tokens=(10, 11), credit=1)


# ------------------------------------------------------------------ verdicts


@pytest.mark.parametrize(
    "wrong",
    [verdict(2, 0, 9), verdict(4, 0, 9), verdict(3, 3)],
    ids=["base below", "base above", "more accepted than sent"],
)
def test_rule_11_a_verdict_about_something_else_is_a_violation(wrong: Verdict) -> None:
    ours = branch(10, 11, 12, sent=2)
    with pytest.raises(ProtocolViolation):
        ours.apply(wrong)
    assert ours.committed == [1, 2, 3]
    assert ours.tail == [10, 11, 12]


def test_rule_11_accepted_drafts_then_a_correction() -> None:
    ours = branch(10, 11, 12, 13, sent=3, credit=5)
    assert ours.apply(verdict(3, 1, 50)) == [(10, Origin.ACCEPTED), (50, Origin.CORRECTED)]
    assert ours.committed == [1, 2, 3, 10, 50]
    assert (ours.tail, ours.confidences, ours.sent) == ([], [], 0)
    assert (ours.epoch, ours.granted) == (1, 0)
    assert ours.take(0, 1) == Draft(base=5, epoch=1, credit=1)


def test_rule_11_a_bonus_that_equals_the_head_of_the_tail_pops_it() -> None:
    ours = branch(10, 11, 12, 13, sent=3, credit=5)
    assert ours.apply(verdict(3, 1, 11)) == [(10, Origin.ACCEPTED), (11, Origin.CLOUD)]
    assert (ours.tail, ours.sent, ours.epoch) == ([12, 13], 1, 0)
    assert ours.granted == 11  # what was granted stays granted


def test_rule_11_next_tokens_are_compared_one_by_one() -> None:
    ours = branch(10, 11, 12, 13, sent=4)
    assert tokens(ours.apply(verdict(3, 1, 11, 50, 51))) == [10, 11, 50, 51]
    assert (ours.tail, ours.epoch) == ([], 1)


def test_rule_11_an_unsent_tail_is_dropped_without_a_new_epoch() -> None:
    ours = branch(10, 11)
    ours.take(0, 5)
    assert ours.apply(verdict(3, 0, 50)) == [(50, Origin.CLOUD)]
    assert (ours.tail, ours.epoch, ours.granted) == ([], 0, 8)


def test_rule_11_the_verifiers_run_on_may_pop_drafts_that_were_never_sent() -> None:
    ours = branch(10, 11, 12, sent=1, credit=5)
    assert tokens(ours.apply(verdict(3, 1, 11, 12, 60))) == [10, 11, 12, 60]
    assert (ours.tail, ours.sent, ours.epoch) == ([], 0, 0)


def test_rule_11_full_acceptance_without_bonus() -> None:
    ours = branch(10, 11, sent=2, credit=0)
    assert ours.apply(verdict(3, 2)) == [(10, Origin.ACCEPTED), (11, Origin.ACCEPTED)]
    assert ours.idle


def test_rule_17_a_correction_that_equals_the_draft_is_an_acceptance() -> None:
    ours = branch(10, 11, sent=2)
    ours.apply(verdict(3, 0, 10))
    assert (ours.tail, ours.sent, ours.epoch) == ([11], 1, 0)


def test_outcomes_say_of_each_judged_draft_whether_the_target_agreed() -> None:
    ours = branch(10, 11, 12, 13, sent=4)
    ours.apply(verdict(3, 1, 11, 50))
    assert ours.outcomes == [(0.10, True), (0.11, True), (0.12, False)]


def test_rule_22_truncating_takes_back_committed_tokens_and_all_drafts() -> None:
    ours = branch(10, 11, sent=1)
    ours.truncate(2)
    assert (ours.committed, ours.tail, ours.confidences, ours.sent) == ([1, 2], [], [], 0)
    assert ours.agreed == 2


# ------------------------------------------------------------------ what the drafter holds


@pytest.mark.parametrize(
    ("decided", "agreed"),
    [
        (verdict(3, 2), 6),  # all of it still stands
        (verdict(3, 1, 50), 4),  # rolled back to before the correction
        (verdict(3, 0, 50, 51), 3),
        (verdict(3, 2, 12, 13), 6),  # the target ran past the drafts
    ],
)
def test_what_the_drafter_agrees_on_never_includes_a_token_it_did_not_see(
    decided: Verdict, agreed: int
) -> None:
    ours = branch(10, 11, 12, sent=2)
    drafter = [1, 2, 3, 10, 11, 12]
    ours.apply(decided)
    text = ours.since(0)
    assert text[: ours.agreed] == drafter[: ours.agreed]
    assert ours.agreed == agreed


def test_since_spans_committed_and_drafted_tokens() -> None:
    ours = branch(10, 11)
    assert [ours.since(at) for at in (0, 2, 3, 4, 5, 9)] == [
        [1, 2, 3, 10, 11],
        [3, 10, 11],
        [10, 11],
        [11],
        [],
        [],
    ]


def test_every_turn_of_the_text_is_a_fork_and_going_on_is_none() -> None:
    ours = branch(10, 11, sent=2)
    ours.apply(verdict(3, 1, 11))
    assert ours.forks == 0
    ours.push(12, 0.5)
    ours.apply(verdict(5, 0, 50))
    assert ours.forks == 1


# ------------------------------------------------------------------ what to send next


@pytest.mark.parametrize(
    ("drafted", "more", "expected"),
    [
        ((), True, None),
        ((10, 11), True, None),
        ((10, 11, 12), True, (10, 11, 12)),
        ((10, 11), False, (10, 11)),
        ((), False, ()),
    ],
    ids=["a draft is in the making", "too few", "K drafts", "no more come", "none to come"],
)
def test_waiting_sends_k_drafts_or_what_there_is(
    drafted: Tokens, more: bool, expected: Tokens | None
) -> None:
    frame = branch(*drafted).due(WAITING, LIMITS, more=more)
    assert (frame and frame.tokens) == expected


def test_waiting_sends_nothing_while_drafts_are_out() -> None:
    assert branch(10, 11, 12, 13, sent=3).due(WAITING, LIMITS, more=False) is None


def test_waiting_holds_a_lone_draft_of_the_token_that_the_verifier_is_at() -> None:
    plan = Plan.waiting(1)
    ours = branch()
    ours.take(0, 1)
    ours.push(10, 0.1)
    assert ours.due(plan, LIMITS, more=False) is None
    assert not ours.idle  # rule 21: the verifier has credit for it
    ours.apply(verdict(3, 0, 10))
    ours.push(11, 0.1)
    assert ours.due(plan, LIMITS, more=False) == Draft(base=4, epoch=0, tokens=(11,), credit=1)


def test_waiting_sends_drafts_that_reach_beyond_the_token_that_the_verifier_is_at() -> None:
    ours = branch()
    ours.take(0, 1)
    for token in (10, 11, 12):
        ours.push(token, 0.1)
    assert ours.due(WAITING, LIMITS, more=False) == Draft(
        base=3, epoch=0, tokens=(10, 11, 12), credit=1
    )


def test_pipelining_sends_chunks_while_drafts_are_out() -> None:
    ours = branch(10, 11, 12, sent=2)
    assert ours.due(PIPELINED, LIMITS, more=True) is None
    ours.push(13, 0.5)
    assert ours.due(PIPELINED, LIMITS, more=True) == Draft(
        base=5, epoch=0, tokens=(12, 13), credit=1
    )


def test_pipelining_sends_a_short_chunk_when_no_more_drafts_come() -> None:
    frame = branch(10, 11, 12, sent=2).due(PIPELINED, LIMITS, more=False)
    assert frame is not None
    assert frame.tokens == (12,)


def test_rule_21_something_is_always_under_way() -> None:
    idle = branch()
    assert idle.idle
    frame = idle.due(PIPELINED, LIMITS, more=False)
    assert frame == Draft(base=3, epoch=0, credit=1)
    assert not idle.idle
    assert idle.due(PIPELINED, LIMITS, more=False) is None


def test_rule_21_credit_lost_with_a_rejected_tail_is_stated_again() -> None:
    ours = branch(10, 11, sent=2, credit=9)
    ours.apply(verdict(3, 0, 50))
    assert ours.due(PIPELINED, LIMITS, more=False) == Draft(base=4, epoch=1, credit=1)


@pytest.mark.parametrize("plan", [PIPELINED, WAITING, Plan(window=3, chunk=3, credit=0)])
def test_rule_21_an_empty_draft_always_has_credit(plan: Plan) -> None:
    frame = branch().due(plan, LIMITS, more=False)
    assert frame is not None
    assert frame.credit >= 1


@pytest.mark.parametrize(("left", "due"), [(8, False), (5, False), (4, True), (0, True)])
def test_the_cloud_alone_is_granted_more_when_half_is_used_up(left: int, due: bool) -> None:
    ours = branch()
    ours.granted = 3 + left
    frame = ours.due(CLOUD, LIMITS, more=False)
    assert (frame == Draft(base=3, epoch=0, credit=8)) is due


def test_turning_to_the_cloud_keeps_what_is_sent_and_drops_the_rest() -> None:
    ours = branch(10, 11, 12, sent=2, credit=4)
    assert ours.due(CLOUD, LIMITS, more=False) == Draft(base=5, epoch=0, credit=8)
    assert ours.tail == [10, 11]


@pytest.mark.parametrize("drafted", [(), (10, 11, 12)])
def test_in_the_clouds_shadow_drafts_are_kept_and_not_sent(drafted: Tokens) -> None:
    ours = branch(*drafted)
    assert ours.due(Plan.shadow(4, credit=8), LIMITS, more=True) == Draft(base=3, epoch=0, credit=8)
    assert ours.tail == list(drafted)
    assert ours.due(Plan.shadow(4, credit=8), LIMITS, more=True) is None


def test_in_the_clouds_shadow_drafts_are_compared_with_what_it_streams() -> None:
    ours = branch(10, 11, 12)
    ours.due(Plan.shadow(4, credit=8), LIMITS, more=True)
    ours.apply(verdict(3, 0, 10))
    ours.apply(verdict(4, 0, 50))
    assert ours.outcomes == [(0.10, True), (0.11, False)]
    assert (ours.epoch, ours.granted) == (0, 11)  # nothing that was sent is dead


def test_the_drafter_is_behind_by_the_committed_tokens_it_has_not_read() -> None:
    ours = branch(10, sent=1)
    assert ours.behind == 0
    ours.apply(verdict(3, 1, 50, 51))
    assert ours.behind == 2
    ours.push(12, 0.5)
    assert ours.behind == 0


def test_limits_of_the_verifier_bound_what_is_sent_and_granted() -> None:
    ours = branch(*range(10, 20))
    wide = Plan(window=20, chunk=20, credit=99, pipelined=True)
    frame = ours.due(wide, LIMITS, more=False)
    assert frame is not None
    assert (len(frame.tokens), frame.credit) == (6, 10)
    assert ours.due(wide, LIMITS, more=False) is None
    one_left = branch(*range(10, 16), sent=5).due(wide, LIMITS, more=False)
    assert one_left is not None
    assert one_left.tokens == (15,)
    alone = branch().due(Plan.cloud_alone(99), LIMITS, more=False)
    assert alone is not None
    assert alone.credit == 10


@pytest.mark.parametrize(("window", "chunk", "credit"), [(-1, 0, 0), (2, 3, 0), (2, 1, -1)])
def test_a_plan_that_makes_no_sense_is_refused(window: int, chunk: int, credit: int) -> None:
    with pytest.raises(InvalidRequest):
        Plan(window=window, chunk=chunk, credit=credit)
