"""Exact verification rules give the target's distribution, and what is not exact is seen not to.

Statistical tests are seeded. SAMPLES rounds are run; the total variation between their output
and p then exceeds LIMIT with probability below 1e-6: its mean is at most ½·√((V−1)/N), and it
exceeds its mean by t with probability at most exp(−2Nt²) (McDiarmid).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from draftwire.acceptance import dense, draw, match_token, quantize, rejection
from draftwire.noise import Purpose, uniform
from draftwire.sampling import Probabilities, distribution
from draftwire.types import SamplingParams

pytestmark = pytest.mark.slow

P = np.array([0.267, 0.05, 0.15, 0.12, 0.13, 0.11, 0.10, 0.073])
Q = np.array([0.473, 0.099, 0.10, 0.07, 0.08, 0.07, 0.06, 0.048])
OPTIMUM = 0.745  # 1 − TV(P, Q)
VOCAB = P.size
SEED = 77
SAMPLES = 10_000
LIMIT = 0.5 * math.sqrt((VOCAB - 1) / SAMPLES) + math.sqrt(math.log(1e6) / (2 * SAMPLES))
PLAIN = SamplingParams(temperature=1.0, seed=SEED)

Drafting = Callable[[int], tuple[int, Probabilities | None]]


def variation(tokens: list[int], p: Probabilities) -> float:
    return float(np.abs(np.bincount(tokens, minlength=p.size) / len(tokens) - p).sum()) / 2


def sampled(q: Probabilities, position: int) -> int:
    return draw(q, uniform(SEED, position, Purpose.DRAFT))


def test_match_gives_the_target_distribution_whatever_is_drafted() -> None:
    logits = np.log(P)
    tokens = [match_token(logits, t, PLAIN) for t in range(SAMPLES)]
    assert variation(tokens, P) < LIMIT


def test_match_gives_the_renormalised_distribution_where_tokens_are_removed() -> None:
    truncated = SamplingParams(temperature=0.8, top_k=4, top_p=0.9, seed=SEED)
    logits = np.log(P)
    tokens = [match_token(logits, t, truncated) for t in range(SAMPLES)]
    assert variation(tokens, distribution(logits, truncated)) < LIMIT


def test_shared_noise_brings_acceptance_close_to_the_optimum() -> None:
    target = np.array([match_token(np.log(P), t, PLAIN) for t in range(SAMPLES)])
    shared = np.array([match_token(np.log(Q), t, PLAIN) for t in range(SAMPLES)])
    accepted = float((target == shared).mean())
    # P(equal) under shared Gumbel noise: 2408.07978. Hoeffding: off by more in 1e-6 of cases.
    expected = sum(float(1 / np.maximum(P / P[i], Q / Q[i]).sum()) for i in range(VOCAB))
    off = math.sqrt(math.log(2e6) / (2 * SAMPLES))
    assert expected == pytest.approx(0.738, abs=5e-4)
    assert abs(accepted - expected) < off
    assert OPTIMUM / (2 - OPTIMUM) < expected < OPTIMUM
    # A draft without the noise is accepted no more often than its token is likely.
    assert abs(float((target == Q.argmax()).mean()) - 0.267) < off


def sampled_and_stated(t: int) -> tuple[int, Probabilities | None]:
    return sampled(Q, t), Q


def sampled_and_omitted(t: int) -> tuple[int, Probabilities | None]:
    return sampled(Q, t), None


def greedy_and_omitted(_: int) -> tuple[int, Probabilities | None]:
    return int(Q.argmax()), None


def quantized_and_stated(t: int) -> tuple[int, Probabilities | None]:
    compact = dense(quantize(Q, size=4), VOCAB)
    return sampled(compact, t), compact


def greedy_and_stated_as_softmax(_: int) -> tuple[int, Probabilities | None]:
    return int(Q.argmax()), Q


def quantized_but_stated_in_full(t: int) -> tuple[int, Probabilities | None]:
    return sampled(dense(quantize(Q, size=2), VOCAB), t), Q


def first_tokens(drafting: Drafting) -> tuple[list[int], float]:
    """The first token of each round, and how often the draft held."""
    tokens, accepted = [], 0
    for t in range(SAMPLES):
        draft, q = drafting(t)
        outcome = rejection([draft], [P, P], [q], seed=SEED, start=t)
        accepted += outcome.accepted
        tokens.append(draft if outcome.accepted else outcome.token)
    return tokens, accepted / SAMPLES


@pytest.mark.parametrize(
    "drafting", [sampled_and_stated, sampled_and_omitted, greedy_and_omitted, quantized_and_stated]
)
def test_rejection_gives_the_target_distribution(drafting: Drafting) -> None:
    assert variation(first_tokens(drafting)[0], P) < LIMIT


@pytest.mark.parametrize(
    ("drafting", "bias"),
    [(greedy_and_stated_as_softmax, 0.297), (quantized_but_stated_in_full, 0.295)],
)
def test_a_q_that_was_not_sampled_from_is_seen_to_bias(drafting: Drafting, bias: float) -> None:
    # The test above can fail: this is what a greedy draft scored with its softmax looks like.
    assert abs(variation(first_tokens(drafting)[0], P) - bias) < LIMIT


def test_stating_q_raises_acceptance_to_the_optimum() -> None:
    off = math.sqrt(math.log(2e6) / (2 * SAMPLES))
    assert abs(first_tokens(sampled_and_stated)[1] - OPTIMUM) < off
    assert abs(first_tokens(sampled_and_omitted)[1] - float(P @ Q)) < off


def test_the_bonus_token_comes_from_its_own_row_and_stream() -> None:
    # Given that the drafts held: randomness shared with their acceptance would show.
    other = P[::-1].copy()
    tokens = []
    for t in range(SAMPLES):
        outcome = rejection([sampled(Q, t)], [P, other], [Q], seed=SEED, start=t)
        if outcome.accepted:
            tokens.append(outcome.token)
    assert variation(tokens, other) < LIMIT * math.sqrt(SAMPLES / len(tokens))


def test_consecutive_tokens_are_independent_draws() -> None:
    # Streams shared between positions or purposes would show in pairs of tokens.
    small = np.array([0.5, 0.3, 0.2])
    q = np.array([0.2, 0.5, 0.3])
    pairs = []
    for t in range(0, 2 * SAMPLES, 2):
        drafts = [sampled(q, t), sampled(q, t + 1)]
        accepted, token = rejection(drafts, [small] * 3, [q] * 2, seed=SEED, start=t)
        text = [*drafts[:accepted], token]
        if len(text) < 2:
            text.append(rejection([], [small], [], seed=SEED, start=t + 1).token)
        pairs.append(text[0] * 3 + text[1])
    assert variation(pairs, np.outer(small, small).ravel()) < LIMIT + 0.5 * math.sqrt(8 / SAMPLES)
