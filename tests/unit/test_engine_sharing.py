"""Many on one target: KV shared, KV short, prompts beside rounds, owners, wasted drafts, the books.

Times are virtual: a pass takes what the test says it takes.
"""

from __future__ import annotations

import math

import pytest
from engine_bench import MODEL, PROMPT, Verifier, go, most, opening

from cloud_verifier.allowance import YOUNG_ROUNDS
from cloud_verifier.engine import Detached, EngineConfig
from draftwire.errors import Superseded
from draftwire.types import Cancel, Draft, Finished, FinishReason, Tokens, Verdict

LONG = tuple(1 + at * at % 47 for at in range(1500))


def percentile_95(values: list[float]) -> float:
    return sorted(values)[math.ceil(0.95 * len(values)) - 1]


class Device:
    """Drafts `k` tokens a round as soon as it has its verdict, or `think_s` later."""

    def __init__(
        self,
        verifier: Verifier,
        name: int,
        prompt: Tokens = PROMPT,
        *,
        k: int = 4,
        tokens: int = 0,
        owner: str = "",
        think_s: float = 0.0,
        right: bool = True,
    ) -> None:
        self.verifier, self.k, self.think_s, self.right = verifier, k, think_s, right
        self.start, self.tokens = len(prompt), tokens
        self.text = list(prompt)
        self.whole = MODEL.generate(prompt, tokens or 400)
        self.epoch = 0
        self.waits: list[float] = []
        self.queued: list[float] = []
        self.stream = verifier.begin(opening(name, prompt, stop=most(tokens)), owner=owner)
        self.due_at: float | None = verifier.now
        self.send()

    def send(self) -> None:
        """Its draft, once it is due: back-dated, for it may have come during a pass."""
        if self.due_at is None or self.due_at > self.verifier.now:
            return
        done = len(self.text) - self.start
        right = self.whole[done : done + self.k]
        self.sent = right if self.right else [1 + (token + 1) % 49 for token in right]
        now, self.verifier.now = self.verifier.now, self.due_at
        draft = Draft(base=len(self.text), epoch=self.epoch, tokens=self.sent, credit=1)
        self.verifier.send(self.stream, draft)
        self.sent_at, self.due_at, self.verifier.now = self.due_at, None, now

    def listen(self) -> None:
        for item in self.verifier.heard.pop(self.stream, ()):
            if not isinstance(item, Verdict):
                continue
            self.waits.append(self.verifier.now - self.sent_at)
            self.queued.append(item.timing.queue_us / 1e6)
            self.epoch += item.accepted + len(item.next) < len(self.sent) or (
                list(item.next) != self.sent[item.accepted : item.accepted + len(item.next)]
                and item.accepted < len(self.sent)
            )
            self.text += [*self.sent[: item.accepted], *item.next]
            self.due_at = self.verifier.now + self.think_s
        self.send()

    @property
    def done(self) -> bool:
        return len(self.text) - self.start >= self.tokens > 0


def play(verifier: Verifier, devices: list[Device], steps: int = 10_000) -> None:
    """Step until all devices have their texts, or so many times."""
    for _ in range(steps):
        verifier.step()
        verifier.check_books()
        for device in devices:
            device.listen()
        if not verifier.engine.has_work and not verifier._arrivals:
            due = [device.due_at for device in devices if device.due_at is not None]
            if verifier.engine.next_wakeup is not None:
                due.append(verifier.engine.next_wakeup)
            if not due or all(device.done for device in devices):
                break
            verifier.now = max(verifier.now, min(due))
            for device in devices:
                device.send()


# ------------------------------------------------------------------ KV is shared


def test_two_sessions_of_one_owner_share_the_blocks_of_a_common_prompt() -> None:
    verifier = Verifier()
    prompt = LONG[:21]
    first = verifier.begin(opening(1, prompt), go(prompt, credit=2), owner="me")
    verifier.settle()
    second = verifier.begin(opening(2, prompt, stop=most(9)), go(prompt), owner="me")
    verifier.step()
    assert verifier.cached(second) == 20
    one, two = (session.kv.blocks for session in verifier.engine.active.values())
    assert one[:5] == two[:5]
    assert not set(one[5:]) & set(two[5:])
    verifier.send(first, Draft(base=23, epoch=0, credit=7))
    verifier.settle()
    assert verifier.text(first) == verifier.text(second) == MODEL.generate(prompt, 9)


def test_owners_share_no_blocks_as_a_hit_would_tell_what_another_has_asked() -> None:
    verifier = Verifier()
    prompt = LONG[:21]
    for name, owner in enumerate(("me", "you")):
        stream = verifier.begin(opening(name, prompt, stop=most(5)), go(prompt), owner=owner)
        verifier.settle()
        assert verifier.cached(stream) == 0
        assert verifier.text(stream) == MODEL.generate(prompt, 5)


def test_the_second_session_with_a_long_common_prefix_computes_only_the_rest() -> None:
    verifier = Verifier(max_context=2000, num_blocks=300, block_size=16)
    fed = []
    for name in (1, 2):
        prompt = (*LONG, 40 + name, 7, 8)
        stream = verifier.begin(opening(name, prompt, stop=most(6)), go(prompt))
        before = verifier.recorder.tokens
        verifier.settle()
        fed.append(verifier.recorder.tokens - before)
        assert verifier.text(stream) == MODEL.generate(prompt, 6)
    shared = 1500 // 16 * 16
    assert fed == [1503 + 5, 1503 - shared + 5]
    assert verifier.end(stream).usage.cached_tokens == shared
    assert verifier.recorder.opens == [(1503, 0, False), (1503, shared, False)]


def test_a_session_that_comes_back_finds_its_kv() -> None:
    verifier = Verifier()
    first = verifier.begin(opening(stop=most(14)), go())
    verifier.settle()
    turn = (*PROMPT, *verifier.text(first), 9, 10)
    again = verifier.begin(opening(prompt=turn, prefix=17, attempt=2, generation=2), go(turn, 1))
    verifier.settle()
    assert verifier.cached(again) == 16
    assert len(verifier.target.passes[-1][0].tokens) == 3
    verifier.send(again, Cancel())
    verifier.settle()
    assert verifier.end(again).usage.cached_tokens == 16


def test_rule_5_a_new_turn_keeps_the_kv_of_the_common_prefix_only() -> None:
    verifier = Verifier(block_size=2)
    first = verifier.begin(opening(stop=most(9)), go())
    verifier.settle()
    text = (*PROMPT, *verifier.text(first))
    other = (*text[:7], 1 + text[7] % 49, 9, 10)
    again = verifier.begin(opening(prompt=other, attempt=2, generation=2, stop=most(4)), go(other))
    verifier.settle()
    assert verifier.cached(again) == 6
    assert verifier.text(again) == MODEL.generate(other, 4)


def test_a_generation_begun_anew_under_its_number_counts_what_was_cached_then() -> None:
    verifier = Verifier()
    first = verifier.begin(opening(stop=most(9)), go())
    verifier.settle()
    turn = (*PROMPT, *verifier.text(first))
    again = verifier.begin(opening(prompt=turn, attempt=2, stop=most(1)), go(turn))
    verifier.settle()
    assert verifier.end(again).usage.cached_tokens == 8
    assert verifier.recorder.opens == [(3, 0, False), (12, 8, False)]


@pytest.mark.parametrize("way", ["finish", "cancel", "leave", "error", "fault"])
def test_whichever_way_a_session_ends_it_holds_nothing_and_all_goes_in_time(way: str) -> None:
    verifier = Verifier(session_ttl_s=10.0)
    stream = verifier.begin(opening(stop=most(9)), go(credit=60 if way == "finish" else 5))
    verifier.settle()
    verifier.target.broken = way == "fault"
    last = {
        "cancel": Cancel(),
        "leave": Detached(),
        "error": Draft(base=50, epoch=0),
        "fault": Draft(base=8, epoch=0, credit=1),
    }
    if way in last:
        verifier.send(stream, last[way])
    verifier.settle()
    pool = verifier.engine.pool
    assert pool.held == 0
    assert pool.cached > 0
    assert verifier.engine.next_wakeup == 10.0
    verifier.now = 10.0
    verifier.step()
    assert pool.free == pool.num_blocks
    assert verifier.engine.next_wakeup is None


def test_blocks_that_a_lost_session_left_cached_are_waited_for_and_go() -> None:
    verifier = Verifier(session_ttl_s=10.0, max_retained=0)
    verifier.begin(opening(stop=most(9)), go())
    verifier.settle()
    verifier.step()
    assert not verifier.engine.idle
    assert verifier.engine.next_wakeup == 10.0
    verifier.now = 10.0
    verifier.step()  # the very moment the service wakes up at
    assert verifier.engine.next_wakeup is None


# ------------------------------------------------------------------ KV is short


@pytest.mark.parametrize("credit", [1, 60])
def test_kv_for_one_text_serves_four_sessions(credit: int) -> None:
    verifier = Verifier(max_context=200, num_blocks=50)
    devices = [
        Device(verifier, name, (name, 5, 6), k=3 if credit == 1 else 0, tokens=180)
        for name in range(1, 5)
    ]
    play(verifier, devices)
    assert [device.text[3:] for device in devices] == [device.whole for device in devices]
    assert verifier.recorder.preemptions > 2
    assert verifier.recorder.errors == []


def test_kv_for_four_serves_sixteen_devices_and_little_is_computed_twice() -> None:
    fed = []
    for num_blocks in (60, 1000):
        verifier = Verifier(max_context=60, num_blocks=num_blocks, fixed_s=0.02)
        devices = [
            Device(verifier, name, (name, 5, 6), tokens=50, think_s=0.1) for name in range(1, 17)
        ]
        play(verifier, devices)
        assert [device.text[3:] for device in devices] == [device.whole for device in devices]
        fed.append(verifier.recorder.tokens)
    assert fed[0] <= 1.1 * fed[1]


def test_a_round_without_room_does_not_keep_a_prompt_waiting_that_was_left_out_once() -> None:
    verifier = Verifier(max_context=60, max_rows=3, num_blocks=15, max_batch_tokens=16)
    prompt = LONG[:25]
    first = verifier.begin(opening(1, prompt, stop=most(30)), go(prompt))
    verifier.step()
    second = verifier.begin(opening(2, stop=most(50)), go())
    verifier.settle()
    assert verifier.text(first) == MODEL.generate(prompt, 30)
    assert verifier.text(second) == MODEL.generate(PROMPT, 50)


def test_owners_share_the_kv_whoever_came_first() -> None:
    verifier = Verifier(max_context=60, num_blocks=30)
    for name in range(1, 5):
        verifier.begin(opening(name, stop=most(50)), go(), owner="many")
    for _ in range(10):
        verifier.step()
    late = verifier.begin(opening(9, stop=most(50)), go(), owner="one")
    for _ in range(50):
        verifier.step()
    assert verifier.text(late) == MODEL.generate(PROMPT, 50)  # at a token a step
    verifier.settle()
    assert verifier.recorder.errors == []


def test_the_ready_session_admitted_first_is_never_preempted() -> None:
    verifier = Verifier(max_context=200, num_blocks=50, max_credit=200)
    streams = [
        verifier.begin(opening(name, stop=most(180)), go(credit=180)) for name in range(1, 5)
    ]
    verifier.step()
    while verifier.engine.has_work:
        first = next(iter(verifier.engine.active.values()))
        written = len(first.tokens)
        verifier.step()
        assert len(first.tokens) == written + 1  # each step brings it a token
    assert [verifier.text(stream) for stream in streams] == [MODEL.generate(PROMPT, 180)] * 4
    assert verifier.recorder.preemptions > 0
    verifier.check_books()


def test_what_was_preempted_and_not_yet_taken_is_found_again() -> None:
    verifier = Verifier(max_context=60, num_blocks=15)
    first = verifier.begin(opening(1, LONG[:33]), go(LONG[:33], credit=1))
    verifier.settle()
    second = verifier.begin(opening(2, (9,) * 30), go((9,) * 30, credit=1))
    verifier.settle()
    assert verifier.verdicts(second) == []  # the first may keep its KV for a round trip
    verifier.now = verifier.engine.next_wakeup or 0.0
    assert verifier.now == EngineConfig().kv_hold_s
    verifier.settle()
    assert verifier.recorder.preemptions == 1
    verifier.send(first, Draft(base=34, epoch=0, credit=1))
    verifier.settle()
    (row,) = verifier.target.passes[-1]
    assert row.start > 0
    assert verifier.text(first) == MODEL.generate(LONG[:33], 2)
    assert verifier.text(second) == MODEL.generate((9,) * 30, 1)


# ------------------------------------------------------------------ prompts beside rounds


COSTS = {"weights dominate": (0.030, 1e-5), "both": (0.030, 5e-4), "tokens dominate": (0.005, 1e-3)}


def beside_a_prompt(fixed_s: float, per_token_s: float, think_s: float) -> tuple[Verifier, Device]:
    """A device in the middle of its text, and then prompts of 4,000 tokens that come for long."""
    verifier = Verifier(
        max_context=6000,
        num_blocks=3000,
        block_size=16,
        fixed_s=fixed_s,
        per_token_s=per_token_s,
    )
    device = Device(verifier, 1, k=4, think_s=think_s)
    play(verifier, [device], 20)
    prompts = []
    for name in range(2, 5):
        prompt = [1 + (at * name) % 47 for at in range(4000)]
        prompts.append(verifier.begin(opening(name, prompt), go(prompt, credit=1)))
    device.waits.clear()
    device.queued.clear()
    for _ in range(5000):
        play(verifier, [device], 1)
        if all(verifier.verdicts(stream) for stream in prompts) or len(device.text) > 390:
            break
    assert len(device.waits) > 20
    return verifier, device


@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)
def test_a_round_beside_a_long_prompt_waits_no_longer_than_twice_its_usual_pass(
    cost: tuple[float, float],
) -> None:
    fixed_s, per_token_s = cost
    _, device = beside_a_prompt(fixed_s, per_token_s, think_s=0.0)
    usual_s = fixed_s + 5 * per_token_s
    assert percentile_95(device.waits) <= 2 * usual_s


@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)
def test_a_round_that_comes_during_a_prompts_pass_is_in_the_next(
    cost: tuple[float, float],
) -> None:
    fixed_s, per_token_s = cost
    usual_s = fixed_s + 5 * per_token_s
    _, device = beside_a_prompt(fixed_s, per_token_s, think_s=0.7 * usual_s)
    assert percentile_95(device.queued) <= 2 * usual_s


def test_prompts_take_whole_passes_where_no_round_can_be_held_up() -> None:
    verifier = Verifier(max_context=2000, num_blocks=400, block_size=16)
    for name in range(1, 4):
        verifier.begin(opening(name, (name, *LONG)), go((name, *LONG), credit=1))
    while not verifier.recorder.verdicts:
        verifier.step()
    fed = [sum(len(row.tokens) for row in rows) for rows in verifier.target.passes]
    assert fed[:-1] == [512] * (len(fed) - 1)


def test_prompts_get_on_though_another_sessions_device_is_silent() -> None:
    verifier = Verifier(
        max_context=6000, num_blocks=800, block_size=16, fixed_s=0.03, per_token_s=1e-5
    )
    verifier.begin(opening(1), go(credit=1))
    verifier.settle()
    prompt = LONG * 3
    verifier.begin(opening(2, prompt), go(prompt, credit=1))
    passes = verifier.recorder.passes
    verifier.settle()
    assert verifier.recorder.passes - passes < 35  # not 4500 / 16


def test_a_prompts_last_part_goes_with_its_drafts_budget() -> None:
    verifier = Verifier(max_batch_tokens=8)
    prompt = LONG[:13]
    drafts = MODEL.generate(prompt, 3)
    stream = verifier.begin(opening(1, prompt), Draft(base=13, epoch=0, tokens=drafts, credit=0))
    verifier.settle()
    assert [len(rows[0].tokens) for rows in verifier.target.passes] == [8, 8]
    assert [verdict.accepted for verdict in verifier.verdicts(stream)] == [3]


# ------------------------------------------------------------------ owners


def test_an_owner_with_twenty_sessions_does_not_slow_anothers_one() -> None:
    verifier = Verifier(num_blocks=1000, max_batch_tokens=20)
    many = [Device(verifier, name, owner="many", tokens=60) for name in range(20)]
    one = Device(verifier, 99, owner="one", tokens=60)
    passes = 0
    while not one.done:
        play(verifier, [*many, one], 1)
        passes += 1
    assert passes <= 60 / 5 + 3  # as if it were alone: five tokens a round
    play(verifier, [*many, one])
    assert all(device.text[3:] == device.whole for device in [*many, one])


# ------------------------------------------------------------------ wasted drafts


def test_a_device_that_is_always_wrong_ends_up_at_passes_of_one_row() -> None:
    verifier = Verifier(max_context=200)
    device = Device(verifier, 1, k=5, tokens=100, right=False)
    play(verifier, [device])
    assert device.text[3:] == device.whole
    rows = [len(row.tokens) for (row,) in verifier.target.passes[1:]]
    assert rows[: YOUNG_ROUNDS - 1] == [6] * (YOUNG_ROUNDS - 1)
    late = rows[YOUNG_ROUNDS:]
    assert late.count(1) / len(late) > 0.9


def test_a_device_that_gets_better_is_judged_again() -> None:
    verifier = Verifier(max_context=300)
    device = Device(verifier, 1, k=5, tokens=200, right=False)
    play(verifier, [device], 40)
    assert len(verifier.target.passes[-1][0].tokens) == 1
    device.right = True
    play(verifier, [device], 20)
    assert len(verifier.target.passes[-1][0].tokens) == 6
    play(verifier, [device])
    assert device.text[3:] == device.whole


def test_a_good_device_is_never_limited() -> None:
    verifier = Verifier(max_context=500)
    device = Device(verifier, 1, k=5, tokens=300)
    play(verifier, [device])
    rounds = [row.drafts for (row,) in verifier.target.passes]
    assert set(rounds[:-1]) == {5}


# ------------------------------------------------------------------ what the observer hears


def test_the_observers_counts_are_those_of_usage() -> None:
    verifier = Verifier()
    device = Device(verifier, 1, k=3, tokens=40)
    play(verifier, [device], 5)
    device.right = False
    streams = [device.stream, verifier.begin(opening(2, stop=most(9)), go())]
    ends = []
    for _ in range(200):
        verifier.step()
        ends += [
            item.usage
            for stream in streams
            for item in verifier.heard.get(stream, ())
            if isinstance(item, Finished)
        ]
        device.listen()
        verifier.heard.clear()
    heard = verifier.recorder
    assert len(ends) == 2
    assert heard.drafted == sum(usage.drafted for usage in ends)
    assert heard.accepted == sum(usage.accepted for usage in ends)
    assert heard.verdicts == sum(usage.passes for usage in ends)
    assert heard.delivered_tokens == sum(usage.completion_tokens for usage in ends) == 49
    assert heard.accepted + heard.own == heard.delivered_tokens
    assert heard.ends == [FinishReason.LENGTH] * 2
    assert heard.tokens == sum(len(row.tokens) for rows in verifier.target.passes for row in rows)
    assert heard.passes == len(verifier.target.passes) == len(heard.pass_s)
    assert len(heard.first_s) == 2


def test_full_acceptance_without_credit_has_no_token_of_the_targets_own() -> None:
    verifier = Verifier()
    drafts = MODEL.generate(PROMPT, 4)
    verifier.begin(opening(), Draft(base=3, epoch=0, tokens=drafts, credit=0))
    verifier.settle()
    heard = verifier.recorder
    assert (heard.drafted, heard.accepted, heard.own) == (4, 4, 0)


def test_the_first_tokens_are_timed_from_the_open_and_later_ones_from_those_before() -> None:
    verifier = Verifier(fixed_s=1.0, max_batch_tokens=4)
    prompt = LONG[:7]
    verifier.begin(opening(1, prompt, stop=most(3)), go(prompt))
    verifier.now = 0.5
    verifier.settle()
    heard = verifier.recorder
    assert (heard.first_s, heard.later_s) == ([2.5], [1.0, 1.0])
    assert heard.pass_s == [1.0] * 4


def test_stale_drafts_errors_and_resumptions_are_heard() -> None:
    verifier = Verifier()
    stream = verifier.begin(opening(stop=most(9)), go(credit=2))
    verifier.settle()
    wrong = 1 + verifier.text(stream)[0] % 49
    verifier.send(stream, Draft(base=3, epoch=0, tokens=(wrong, 1, 2)))
    verifier.settle()
    held = (*PROMPT, *verifier.text(stream))
    again = verifier.begin(opening(prompt=held, attempt=2, start=3, stop=most(9)))
    verifier.settle()
    assert isinstance(verifier.last(stream), Superseded)
    verifier.send(again, Draft(base=99, epoch=0))
    verifier.settle()
    heard = verifier.recorder
    assert heard.stale_tokens == 3
    assert heard.errors == ["SUPERSEDED", "PROTOCOL_VIOLATION"]
    assert heard.opens == [(3, 0, False), (3, 4, True)]


def test_an_end_that_is_only_told_again_is_heard_once() -> None:
    verifier = Verifier()
    first = verifier.begin(opening(stop=most(2)), go())
    verifier.settle()
    again = verifier.begin(opening(attempt=2, stop=most(2)))
    verifier.settle()
    assert verifier.text(first) == verifier.text(again) == MODEL.generate(PROMPT, 2)
    assert verifier.recorder.ends == [FinishReason.LENGTH]
    assert verifier.recorder.delivered_tokens == 2
