"""Verification rules: what they accept, and what comes next."""

from __future__ import annotations

import math

import numpy as np
import pytest

from draftwire.acceptance import (
    Outcome,
    dense,
    draw,
    entropy,
    match,
    match_token,
    one_hot,
    quantize,
    rejection,
    residual,
    typical,
)
from draftwire.errors import InvalidRequest
from draftwire.noise import Purpose, uniform
from draftwire.sampling import Probabilities
from draftwire.types import CompactDistribution, SamplingParams

P = np.array([0.267, 0.05, 0.15, 0.12, 0.13, 0.11, 0.10, 0.073])
Q = np.array([0.473, 0.099, 0.10, 0.07, 0.08, 0.07, 0.06, 0.048])
VOCAB = P.size
SEED = 77


def sampled(q: Probabilities, position: int) -> int:
    return draw(q, uniform(SEED, position, Purpose.DRAFT))


# ------------------------------------------------------------------ match


def test_drafts_hold_while_they_equal_the_target() -> None:
    assert match([5, 6, 7], [5, 6, 7, 8]) == Outcome(3, 8)
    assert match([5, 6, 7], [5, 9, 7, 8]) == Outcome(1, 9)
    assert match([5], [6, 8]) == Outcome(0, 6)
    assert match([], [8]) == Outcome(0, 8)


def test_match_at_temperature_zero_is_argmax_at_every_position() -> None:
    logits = np.array([1.0, 3.0, 3.0, 2.0])
    assert {match_token(logits, t, SamplingParams(seed=t)) for t in range(50)} == {1}


def test_match_never_gives_a_token_that_truncation_removed() -> None:
    logits = np.log(P)
    for params, allowed in (
        (SamplingParams(temperature=1.0, top_k=2), {0, 2}),
        (SamplingParams(temperature=1.0, top_p=0.5), {0, 2, 4}),
        (SamplingParams(temperature=1.0, min_p=0.45), {0, 2, 4}),
    ):
        tokens = [match_token(logits, t, params) for t in range(400)]
        assert set(tokens) == allowed


# ------------------------------------------------------------------ rejection


def test_rejection_follows_the_pattern_that_p_and_q_force() -> None:
    a, b, c = (one_hot(i, VOCAB) for i in range(3))
    rows = [a, b, c, a]
    assert rejection([0, 1, 2], rows, [None] * 3, seed=1, start=0) == Outcome(3, 0)
    assert rejection([0, 2, 2], rows, [None] * 3, seed=1, start=0) == Outcome(1, 1)
    assert rejection([3, 1, 2], rows, [Q, Q, Q], seed=1, start=0) == Outcome(0, 0)
    assert rejection([], [c], [], seed=1, start=0) == Outcome(0, 2)


def test_a_decision_depends_on_its_position_alone() -> None:
    # Rounds of three, and the same positions judged one by one, decide alike.
    for start in range(0, 300, 3):
        drafts = [sampled(Q, start + j) for j in range(3)]
        accepted, token = rejection(drafts, [P] * 4, [Q] * 3, seed=SEED, start=start)
        for j in range(min(accepted + 1, 3)):
            single = rejection([drafts[j]], [P, P], [Q], seed=SEED, start=start + j)
            assert single.accepted == (j < accepted)
            if j == accepted:
                assert single.token == token


def test_a_recovery_draw_that_equals_the_draft_counts_as_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Rounding can reject a draft although p ≈ q; then p itself is drawn from.
    q = P * (1 + 1e-12)
    monkeypatch.setattr("draftwire.acceptance.uniform", lambda *_: 1 - 2**-53)
    assert residual(P, q) is P
    assert rejection([7], [P, P], [q], seed=0, start=0).accepted == 1
    assert rejection([6], [P, P], [q], seed=0, start=0) == Outcome(0, 7)


def test_a_draft_without_weight_in_its_own_distribution_is_refused() -> None:
    q = np.array([0.5, 0.5, 0, 0, 0, 0, 0, 0])
    with pytest.raises(InvalidRequest, match="position 41"):
        rejection([0, 2], [one_hot(0, VOCAB), P, P], [None, q], seed=0, start=40)


def test_draws_never_hit_a_token_without_weight() -> None:
    weights = np.array([0.0, 0.25, 0.0, 0.75, 0.0])
    assert [draw(weights, u) for u in (0.0, 0.2499, 0.25, 0.9999, 1 - 2**-53)] == [1, 1, 3, 3, 3]
    assert draw(np.array([3.0, 1.0, 0.0]) / 3, 1 - 2**-53) == 1


# ------------------------------------------------------------------ compact q


def test_the_compact_distribution_keeps_the_most_likely_tokens() -> None:
    q = np.array([0.1, 0.4, 0.1, 0.39, 0.01])
    compact = quantize(q, size=3)
    assert list(compact.tokens) == [0, 1, 3]
    assert list(compact.weights) == [64, 255, 249]
    assert dense(compact, 5) == pytest.approx([64 / 568, 255 / 568, 0, 249 / 568, 0])
    assert dense(quantize(one_hot(2, 5)), 5).tolist() == one_hot(2, 5).tolist()


def test_weights_that_round_to_zero_are_not_sent() -> None:
    assert list(quantize(np.array([0.9989, 0.001, 0.0001])).tokens) == [0]


def test_malformed_compact_distributions_are_refused() -> None:
    for tokens in ([1, 1], [1, 8]):
        with pytest.raises(InvalidRequest):
            dense(CompactDistribution(tokens=tokens, weights=b"\x01\x01"), VOCAB)


# ------------------------------------------------------------------ typical


def test_typical_takes_the_first_draft_greedily_and_others_by_entropy() -> None:
    sure = np.array([0.97, 0.01, 0.01, 0.01])  # H = 0.168: threshold min(0.09, 0.254)
    flat = np.array([0.28, 0.24, 0.24, 0.24])  # H = 1.384: threshold 0.0752
    assert typical([0, 0], [sure, sure, flat]) == Outcome(2, 0)
    assert typical([1, 0], [sure, sure, flat]) == Outcome(0, 0)
    assert typical([0, 1], [sure, sure, flat]) == Outcome(1, 0)
    assert typical([0, 3, 1], [flat, flat, flat, sure]) == Outcome(3, 0)
    assert typical([3], [flat, sure]) == Outcome(0, 0)
    assert typical([], [flat]) == Outcome(0, 0)


def test_typical_thresholds_are_strict() -> None:
    p = np.array([0.91, 0.09])
    assert typical([0, 1], [p, p, p], epsilon=0.09).accepted == 1
    assert typical([0, 1], [p, p, p], epsilon=0.0899).accepted == 2


def test_entropy_is_in_nats() -> None:
    assert entropy(np.full(4, 0.25)) == pytest.approx(math.log(4))
    assert entropy(one_hot(1, 4)) == 0
