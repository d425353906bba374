"""Every KV block is accounted for, in whatever ways thousands of sessions end."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from engine_bench import MODEL, Verifier, most, opening

from cloud_verifier.engine import Detached
from draftwire.errors import DraftwireError
from draftwire.types import Cancel, Draft, Finished, Verdict

STEMS = [(), *(tuple(range(1, length)) for length in (6, 13, 22))]  # prompts in part the same
WAYS = ("finish", "cancel", "leave", "silence", "error", "fenced", "too long")
TTL_S = 30.0


def check_blocks(verifier: Verifier) -> None:
    """Each block is free, or cached under its key, or held by as many as its count says."""
    engine, pool = verifier.engine, verifier.engine.pool
    assert not any(session.kv.blocks for session in engine.idle.values())
    tables = [session.kv.blocks for session in engine.active.values()]
    holders = Counter(block for blocks in tables for block in blocks)
    assert holders == {block: count for block, count in enumerate(pool._holders) if count}
    whereabouts = [*pool._free, *pool._cached, *holders]
    assert sorted(whereabouts) == list(range(pool.num_blocks))
    assert pool.free + pool.cached + pool.held == pool.num_blocks
    assert pool._cached.keys() <= pool._key_of.keys() <= pool._cached.keys() | holders.keys()
    assert {key: block for block, key in pool._key_of.items()} == pool._block_of


class Guest:
    """A session that gets on for a few rounds and then ends in its way."""

    def __init__(self, verifier: Verifier, name: int, rng: random.Random) -> None:
        self.verifier, self.name, self.rng = verifier, name, rng
        self.way = rng.choice(WAYS)
        tail = 100 if self.way == "too long" else rng.randint(1, 6)
        self.text = [*rng.choice(STEMS), *(rng.randrange(1, 50) for _ in range(tail))]
        self.start, self.rounds = len(self.text), rng.randint(0, 4)
        self.attempt = 0
        self.gone = False
        self.open()

    def open(self) -> None:
        self.attempt += 1
        self.epoch = 0
        stop = most(3 * self.rounds + 1 if self.way == "finish" else 60)
        change = {"attempt": self.attempt, "start": self.start, "stop": stop}
        self.stream = self.verifier.begin(opening(self.name, self.text, **change))
        self.draft()

    def draft(self) -> None:
        self.sent = MODEL.generate(self.text, self.rng.randint(0, 4))
        if self.sent and self.rng.random() < 0.3:
            self.sent[-1] = 1 + self.sent[-1] % 49
        draft = Draft(base=len(self.text), epoch=self.epoch, tokens=self.sent, credit=1)
        self.verifier.send(self.stream, draft)

    def listen(self) -> str:
        """Go on; how it ended, if it did."""
        for item in self.verifier.heard.pop(self.stream, ()):
            match item:
                case Verdict():
                    self.text += [*self.sent[: item.accepted], *item.next]
                    self.epoch += item.accepted < len(self.sent)
                    self.rounds -= 1
                    self.next()
                case Finished():
                    return item.reason.value
                case DraftwireError():
                    return item.code
        return "gone" if self.gone else ""

    def next(self) -> None:
        if self.rounds > 0 or self.way == "finish":
            self.draft()
        elif self.way == "cancel":
            self.verifier.send(self.stream, Cancel())
        elif self.way == "error":
            self.verifier.send(self.stream, Draft(base=99, epoch=self.epoch))
        elif self.way == "fenced":  # nobody listens to the older stream any more
            self.way, self.rounds = "leave", 1
            self.open()
        elif self.way == "leave":
            self.verifier.send(self.stream, Detached())
            self.gone = True


@pytest.mark.slow
@pytest.mark.parametrize("num_blocks", [26, 200], ids=["KV is short", "KV is ample"])
def test_however_sessions_end_every_block_comes_back(num_blocks: int) -> None:
    rng = random.Random(num_blocks)
    verifier = Verifier(
        num_blocks=num_blocks,
        max_sessions=10,
        max_retained=20,
        session_ttl_s=TTL_S,
        max_silence_s=4.0,
        max_batch_tokens=30,
    )
    guests: list[Guest] = []
    ends: Counter[str] = Counter()
    names = 0
    while names < 1500 or guests:
        while names < 1500 and len(guests) < 11:  # one more than fit
            names += 1
            guests.append(Guest(verifier, names, rng))
        verifier.now += 1.0
        verifier.target.broken = rng.random() < 0.02
        verifier.step()
        check_blocks(verifier)
        for guest in guests[:]:
            if end := guest.listen():
                ends[end] += 1
                guests.remove(guest)
    assert sum(ends.values()) == names
    often = ("length", "cancelled", "gone", "PROTOCOL_VIOLATION", "DEADLINE_EXCEEDED")
    assert min(ends[end] for end in often) > 100
    assert min(ends[end] for end in ("PROMPT_TOO_LONG", "SERVER_FULL", "INTERNAL")) > 20
    assert Counter(verifier.recorder.errors)["SUPERSEDED"] > 100
    assert (verifier.recorder.preemptions > 100) == (num_blocks == 26)
    verifier.settle()
    assert not verifier.engine.active
    assert verifier.engine.pool.held == 0
    verifier.now += TTL_S
    verifier.step()
    check_blocks(verifier)
    assert not verifier.engine.idle
    assert verifier.engine.pool.free == num_blocks
    assert not verifier.engine.pool._key_of
