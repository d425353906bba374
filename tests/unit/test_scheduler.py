"""Who gets how much of a pass."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from waiting_sessions import waiting

from cloud_verifier.allowance import YOUNG_ROUNDS, Allowance
from cloud_verifier.scheduler import ChunkSize, Share, schedule
from cloud_verifier.sessions import Session


def everybody(share: Share, granted: Sequence[Share]) -> bool:
    assert share not in granted
    return True


def shares_of(sessions: list[Session], budget: int, chunk: int | None = None) -> list[Share]:
    chunk = budget if chunk is None else chunk
    return schedule(sessions, budget=budget, chunk=chunk, max_rows=6, grant=everybody)


def parts(
    sessions: list[Session], budget: int, chunk: int | None = None
) -> list[tuple[int, int, int, bool]]:
    """Which session, owed, drafts, judged."""
    return [
        (sessions.index(share.session), share.owed, share.drafts, share.judge)
        for share in shares_of(sessions, budget, chunk)
    ]


def test_nobody_ready_is_no_pass() -> None:
    assert parts([], 10) == []
    idle = waiting(0)
    idle.credit = 0
    assert parts([idle], 10) == []


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
        shares = shares_of(sessions, budget)
        assert sum(share.owed + share.drafts for share in shares) <= budget
        assert all(share.owed >= 1 for share in shares)


def test_a_share_ends_after_what_it_feeds() -> None:
    (share,) = shares_of([waiting(0, prompt=9, held=5, drafts=2)], 100)
    assert (share.tokens, share.end) == (6, 11)


def test_a_row_feeds_what_is_owed_and_then_the_drafts() -> None:
    session = waiting(0, prompt=3, held=2, drafts=2)
    session.kv.blocks = [7, 4]
    row = shares_of([session], 100)[0].row
    assert (row.tokens, row.start, row.blocks) == ([1, 2, 2], 2, [7, 4])
    assert (row.drafts, row.judge, row.sampling) == (2, True, session.sampling)


def test_everybody_is_served_in_turn_whatever_the_others_ask() -> None:
    sessions = [waiting(0, prompt=1, drafts=5), *(waiting(at, prompt=40) for at in range(1, 6))]
    served = [0] * len(sessions)
    for now in range(100, 700):
        for share in shares_of(sessions, 8):
            served[sessions.index(share.session)] += 1
            share.session.queued_at = share.session.served_at = now  # and its prompt never ends
    assert min(served) > 0.7 * max(served)


def test_scheduling_changes_nothing() -> None:
    session = waiting(0, prompt=10, drafts=3)
    assert parts([session], 20) == parts([session], 20)
    assert (session.kv.length, len(session.pending), session.queued_at) == (0, 3, 0)


# ------------------------------------------------------------------ prompts beside rounds


def test_prompts_share_the_chunk_and_rounds_do_not_count_in_it() -> None:
    sessions = [waiting(0, prompt=50), waiting(1, drafts=3), waiting(2, prompt=50)]
    assert parts(sessions, 100, chunk=60) == [
        (0, 50, 0, True),
        (1, 1, 3, True),
        (2, 10, 0, False),
    ]


def test_without_a_chunk_only_rounds_go() -> None:
    sessions = [waiting(0, prompt=50), waiting(1, drafts=3)]
    assert parts(sessions, 100, chunk=0) == [(1, 1, 3, True)]


def test_what_is_short_enough_for_a_round_is_no_prompt() -> None:
    sessions = [waiting(0, prompt=6), waiting(1, prompt=7)]
    assert [share.prompt for share in shares_of(sessions, 100)] == [False, True]


@pytest.mark.parametrize("chunk", [1, 4, 6])
def test_a_chunk_smaller_than_a_round_is_still_a_prompts(chunk: int) -> None:
    (share,) = shares_of([waiting(0, prompt=50)], 100, chunk)
    assert (share.owed, share.prompt) == (chunk, True)


def test_what_is_denied_waits_and_leaves_its_budget_to_others() -> None:
    sessions = [waiting(0, prompt=4), waiting(1, prompt=4)]
    shares = schedule(
        sessions,
        budget=4,
        chunk=4,
        max_rows=6,
        grant=lambda share, _: share.session is sessions[1],
    )
    assert [share.session for share in shares] == [sessions[1]]


class Passes:
    """Passes in which rounds of `rounds` tokens take part; their time grows with their tokens."""

    def __init__(
        self, chunk: ChunkSize, *, rounds: int, fixed_ms: float, per_token_ms: float
    ) -> None:
        self.chunk, self.rounds = chunk, rounds
        self.fixed_ms, self.per_token_ms = fixed_ms, per_token_ms
        self.usual = self.time(0)
        self.stretched: list[float] = []  # pass times over the usual
        self.chunks: list[int] = []

    def time(self, prompt: int) -> float:
        return (self.fixed_ms + self.per_token_ms * (self.rounds + prompt)) / 1000

    def run(self, count: int) -> None:
        """Passes beside a prompt that does not end."""
        for _ in range(count):
            prompt = self.chunk.next(beside_rounds=True)
            self.chunk.ran(prompt, self.time(prompt), beside_rounds=True)
            self.chunks.append(prompt)
            self.stretched.append(self.time(prompt) / self.usual)


COSTS = {
    "weights dominate": (8, 30.0, 0.01),
    "both": (20, 30.0, 0.5),
    "tokens dominate": (40, 5.0, 2.0),
}


@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)
@pytest.mark.parametrize("start", [4, 32, 512])
def test_chunks_settle_where_a_pass_is_stretched_by_as_much_as_it_may(
    cost: tuple[int, float, float], start: int
) -> None:
    rounds, fixed_ms, per_token_ms = cost
    passes = Passes(
        ChunkSize(start=start), rounds=rounds, fixed_ms=fixed_ms, per_token_ms=per_token_ms
    )
    passes.run(80)
    too_long = [at for at, stretch in enumerate(passes.stretched) if stretch > 2]
    assert len(too_long) <= 10  # only while it finds out
    assert too_long == [] or max(too_long) <= 10
    for prompt, stretch in [*zip(passes.chunks, passes.stretched, strict=True)][40:]:
        assert prompt in (0, 512) or stretch == pytest.approx(1.45, abs=0.15)


def test_a_prompt_is_never_stalled_however_dear_its_tokens() -> None:
    passes = Passes(ChunkSize(), rounds=1, fixed_ms=0.0, per_token_ms=10.0)
    passes.run(330)
    assert sum(passes.chunks) >= 300 * 4
    assert all(chunk >= 4 for chunk in passes.chunks if chunk)


def test_the_usual_pass_is_looked_at_though_prompts_never_end() -> None:
    passes = Passes(ChunkSize(), rounds=4, fixed_ms=10.0, per_token_ms=0.5)
    passes.run(400)
    before = passes.chunks[-1]
    looks = [at for at, prompt in enumerate(passes.chunks) if not prompt]
    assert looks[0] == 0
    assert {later - at for at, later in pairwise(looks)} == {33}
    passes.rounds = 100  # more sessions: all passes are longer now, and may be
    passes.run(1000)
    assert passes.chunks[-1] > 3 * before


def test_passes_of_prompts_alone_do_not_make_those_beside_rounds_longer() -> None:
    chunk = ChunkSize(start=100)
    chunk.ran(0, 1.0, beside_rounds=True)
    chunk.next(beside_rounds=True)
    for _ in range(20):
        chunk.ran(100, 0.5, beside_rounds=False)
        chunk.ran(100, 2.0, beside_rounds=True)
    assert chunk.next(beside_rounds=True) == 72
    assert chunk.next(beside_rounds=False) > 100


def test_passes_in_which_no_round_takes_part_are_no_time_to_look() -> None:
    chunk = ChunkSize(start=32)
    assert [chunk.next(beside_rounds=False) for _ in range(100)] == [32] * 100


def test_a_look_comes_once_though_nothing_runs_then() -> None:
    chunk = ChunkSize()
    assert chunk.next(beside_rounds=True) == 0
    assert chunk.next(beside_rounds=True) > 0


# ------------------------------------------------------------------ owners


def serve(sessions: list[Session], passes: int, *, budget: int, chunk: int) -> dict[str, int]:
    """Tokens that each owner gets, of prompts that never end."""
    served: dict[str, int] = {session.owner: 0 for session in sessions}
    for now in range(100, 100 + passes):
        for share in shares_of(sessions, budget, chunk):
            served[share.session.owner] += share.tokens
            share.session.queued_at = share.session.served_at = now
    return served


def test_an_owner_with_twenty_prompts_gets_no_more_than_one_with_one() -> None:
    sessions = [waiting(0, prompt=150, owner="many") for _ in range(20)]
    sessions.append(waiting(1, prompt=150, owner="one"))
    served = serve(sessions, 100, budget=64, chunk=16)
    assert served == {"many": 800, "one": 800}


def test_an_owner_with_twenty_rounds_does_not_hold_up_another_s() -> None:
    sessions = [waiting(0, drafts=5, owner="many") for _ in range(20)]
    one = waiting(1, drafts=5, owner="one")
    for now in range(100, 120):
        shares = shares_of([*sessions, one], 18)
        assert one in [share.session for share in shares]
        for share in shares:
            share.session.queued_at = share.session.served_at = now


def test_an_owners_rounds_do_not_cost_its_prompts_their_turn() -> None:
    sessions = [
        waiting(0, drafts=2, owner="both"),
        waiting(1, prompt=150, owner="both"),
        waiting(2, prompt=150, owner="one"),
    ]
    prompts = [0, 0]
    for now in range(100, 140):
        for share in shares_of(sessions, 64, 16):
            share.session.queued_at = share.session.served_at = now
            if share.prompt:
                prompts[share.session.owner == "one"] += 1
    assert prompts == [20, 20]


def test_of_one_owner_the_longest_waiting_comes_first() -> None:
    sessions = [waiting(3), waiting(1), waiting(2)]
    assert [index for index, *_ in parts(sessions, 100)] == [1, 2, 0]


# ------------------------------------------------------------------ drafts that hardly ever hold


def rounds(allowance: Allowance, held: int, count: int) -> None:
    for _ in range(count):
        allowance.learn(min(held, allowance.drafts + 1))


def test_a_young_session_may_draft_as_it_likes() -> None:
    allowance = Allowance(8)
    rounds(allowance, 0, YOUNG_ROUNDS - 1)
    assert allowance.drafts == 8
    rounds(allowance, 0, 1)
    assert allowance.drafts == 0


@pytest.mark.parametrize(("held", "drafts"), [(1, 6), (2, 10), (4, 18), (8, 32), (30, 32)])
def test_four_times_what_usually_holds_is_judged(held: int, drafts: int) -> None:
    allowance = Allowance(32)
    rounds(allowance, held, 200)
    assert allowance.drafts == drafts


def test_a_device_that_gets_better_is_noticed_at_once_and_trusted_soon() -> None:
    allowance = Allowance(8)
    rounds(allowance, 0, 200)
    assert allowance.drafts == 0
    rounds(allowance, 8, 1)
    assert allowance.drafts > 0
    rounds(allowance, 8, 9)
    assert allowance.drafts == 8


def test_a_device_that_gets_worse_is_limited_step_by_step() -> None:
    allowance = Allowance(32)
    rounds(allowance, 8, 50)
    seen = []
    while allowance.drafts:
        seen.append(allowance.drafts)
        rounds(allowance, 0, 1)
    assert seen == sorted(seen, reverse=True)
    assert 20 < len(seen) < 80


def test_a_session_judges_no_more_than_its_allowance() -> None:
    session = waiting(0, drafts=5)
    for _ in range(YOUNG_ROUNDS):
        session.allowance.learn(0)
    assert parts([session], 100) == [(0, 1, 0, True)]
    session.allowance.learn(1)
    assert parts([session], 100) == [(0, 1, 2, True)]
