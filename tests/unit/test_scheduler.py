"""Who gets how much of a pass."""

from __future__ import annotations

from cloud_verifier.scheduler import schedule
from cloud_verifier.sessions import Session, Stream
from draftwire.types import (
    Draft,
    History,
    ModelCard,
    Open,
    ServingLimits,
    StopRules,
    TargetIdentity,
)

CARD = ModelCard(
    target=TargetIdentity(
        model="toy", digest=b"", dtype="float32", vocabulary_fingerprint=b"", noise_version=1
    ),
    limits=ServingLimits(max_context=200, max_rows=6),
    vocabulary_size=100,
)


def waiting(
    since: float, *, prompt: int = 1, held: int = 0, drafts: int = 0, max_tokens: int = 0
) -> Session:
    """A session that has waited since then, with `held` of its prompt's tokens in KV."""
    session = Session(bytes(16), "", CARD)
    frame = Open(
        session_id=bytes(16),
        attempt=1,
        generation=1,
        start=prompt,
        history=History(tokens=(1,) * prompt),
        vocabulary_fingerprint=b"",
        stop=StopRules(max_tokens=max_tokens),
    )
    session.open(frame, session.resolve(frame), Stream())
    session.draft(Draft(base=prompt, epoch=0, tokens=(2,) * drafts, credit=1))
    session.kv.length = held
    session.queued_at = since
    return session


def parts(sessions: list[Session], budget: int) -> list[tuple[int, int, int, bool]]:
    """Which session, owed, drafts, judged."""
    shares = schedule(sessions, budget=budget, max_rows=6)
    return [
        (sessions.index(share.session), share.owed, share.drafts, share.judge) for share in shares
    ]


def test_nobody_ready_is_no_pass() -> None:
    assert schedule([], budget=10, max_rows=6) == []


def test_all_share_a_pass_when_they_fit() -> None:
    sessions = [waiting(0, drafts=3), waiting(1, prompt=4), waiting(2, prompt=9, held=8, drafts=2)]
    assert parts(sessions, 100) == [(0, 1, 3, True), (1, 4, 0, True), (2, 1, 2, True)]


def test_the_longest_waiting_come_first() -> None:
    sessions = [waiting(5, prompt=3), waiting(1, prompt=3), waiting(3, prompt=3)]
    assert [index for index, *_ in parts(sessions, 6)] == [1, 2]


def test_a_session_judges_no_more_drafts_than_its_rows_less_one() -> None:
    assert parts([waiting(0, drafts=20)], 100) == [(0, 1, 5, True)]


def test_nothing_past_the_end_of_the_generation_is_judged() -> None:
    assert parts([waiting(0, drafts=20, max_tokens=2)], 100) == [(0, 1, 2, True)]


def test_a_prompt_that_does_not_fit_goes_in_chunks_and_the_last_is_judged() -> None:
    session = waiting(0, prompt=10, drafts=2)
    seen = []
    while not seen or not seen[-1][3]:
        (part,) = parts([session], 4)
        seen.append(part)
        session.kv.length += part[1]
    assert seen == [(0, 4, 0, False), (0, 4, 0, False), (0, 2, 2, True)]


def test_a_prompt_takes_what_the_earlier_ones_leave() -> None:
    sessions = [waiting(0, drafts=3), waiting(1, prompt=50), waiting(2)]
    assert parts(sessions, 10) == [(0, 1, 3, True), (1, 6, 0, False)]


def test_drafts_that_do_not_fit_wait_for_the_next_pass() -> None:
    sessions = [waiting(0, prompt=3), waiting(1, drafts=5)]
    assert parts(sessions, 6) == [(0, 3, 0, True), (1, 1, 2, True)]


def test_with_no_room_for_drafts_the_target_still_gives_a_token_of_its_own() -> None:
    assert parts([waiting(0, prompt=4, drafts=3)], 4) == [(0, 4, 0, True)]


def test_a_budget_is_never_exceeded_and_every_share_does_something() -> None:
    sessions = [waiting(since, prompt=1 + 7 * since % 30, drafts=since % 8) for since in range(20)]
    for budget in range(1, 120):
        shares = schedule(sessions, budget=budget, max_rows=6)
        assert sum(share.owed + share.drafts for share in shares) <= budget
        assert all(share.owed >= 1 for share in shares)


def test_a_share_ends_after_what_it_feeds() -> None:
    (share,) = schedule([waiting(0, prompt=9, held=5, drafts=2)], budget=100, max_rows=6)
    assert share.end == 11


def test_everybody_is_served_in_turn_whatever_the_others_ask() -> None:
    sessions = [waiting(0, prompt=1, drafts=5), *(waiting(at, prompt=40) for at in range(1, 6))]
    served = [0] * len(sessions)
    for now in range(100, 700):
        for share in schedule(sessions, budget=8, max_rows=6):
            served[sessions.index(share.session)] += 1
            share.session.queued_at = now  # and its prompt never ends
    assert min(served) > 0.7 * max(served)


def test_scheduling_changes_nothing() -> None:
    session = waiting(0, prompt=10, drafts=3)
    assert schedule([session], budget=20, max_rows=6) == schedule([session], budget=20, max_rows=6)
    assert (session.kv.length, len(session.pending), session.queued_at) == (0, 3, 0)
