"""What the verifier says of its load, and how seldom."""

from __future__ import annotations

import itertools
import random

import pytest
from engine_bench import Verifier, go, opening

from cloud_verifier.hint import LOOK_EVERY, LoadHint, best_draft_length
from draftwire.types import Hint


def throughput(length: int, sessions: float, rate: float, fixed: float, each: float) -> float:
    tokens = sum(rate**n for n in range(length + 1))
    return sessions * tokens / (fixed + each * sessions * (length + 1))


def test_the_length_is_the_one_with_most_tokens_a_second() -> None:
    rng = random.Random(1)
    for _ in range(500):
        setting = rng.randint(2, 64), rng.uniform(0.3, 0.99), rng.uniform(0.01, 0.2), 1e-3
        best = max(range(1, 33), key=lambda k: throughput(k, *setting))
        assert best_draft_length(*setting, 32) == best


def test_drafts_get_shorter_with_more_sessions_and_longer_with_better_drafts() -> None:
    lengths = [best_draft_length(n, 0.8, 0.03, 0.001, 32) for n in (1, 8, 64)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[-1]
    assert best_draft_length(8, 0.97, 0.03, 0.001, 32) > lengths[1]


def hint_after(sessions: int, drafts: int, held: int) -> LoadHint:
    """After passes of so many sessions, give or take half of them."""
    hint, rng = LoadHint(512, 32), random.Random(3)
    for _ in range(200):
        present = sessions + rng.randint(-(sessions // 2), sessions // 2)
        rows = present * (drafts + 1)
        hint.ran(rows, present, 0.03 + 0.001 * rows)
        for _ in range(present):
            hint.judged(drafts, held)
    return hint


def test_a_lone_session_knows_best_itself() -> None:
    assert hint_after(1, 5, 4).current.suggested_k == 0


def test_many_sessions_are_told_what_serves_all() -> None:
    told = hint_after(16, 5, 4).current
    assert told.suggested_k == pytest.approx(best_draft_length(16, 0.8, 0.03, 0.001, 32), abs=1)
    assert told.load_percent == 20


def test_a_hint_does_not_follow_every_pass() -> None:
    rng, hint, told = random.Random(2), LoadHint(512, 32), []
    for _ in range(40 * LOOK_EVERY):
        rows = rng.randint(60, 130)
        hint.ran(rows, 16, 0.03 + 0.001 * rows * rng.uniform(0.9, 1.1))
        hint.judged(5, rng.choice([3, 4, 5]))
        told.append(hint.current)
    changes = sum(before != after for before, after in itertools.pairwise(told))
    assert 1 <= changes <= 8


def test_a_stream_is_told_once() -> None:
    verifier = Verifier()
    stream = verifier.begin(opening(), go())
    told = Hint(suggested_k=4, load_percent=30)
    verifier.engine.hint.current = told
    for _ in range(LOOK_EVERY // 2):
        verifier.step()
    hints = [verdict.hint for verdict in verifier.verdicts(stream)]
    assert hints == [told, *[None] * (len(hints) - 1)]
    assert len(hints) > 4
