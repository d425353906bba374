"""A proposal is the target's own rule on the draft's logits, cut to the likeliest tokens."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from draftwire.acceptance import dense, quantize
from draftwire.errors import InternalError
from draftwire.noise import gumbel_at
from draftwire.sampling import distribution, log_weights
from draftwire.types import SamplingParams, VerifyMode
from edge_client.drafters.propose import CANDIDATES, Proposer, likeliest

SAMPLINGS = [
    SamplingParams(),
    SamplingParams(temperature=1, seed=7),
    SamplingParams(temperature=0.7, seed=2**64 - 1),
    SamplingParams(temperature=0.001, seed=1),
    SamplingParams(temperature=1, top_k=40, seed=3),
    SamplingParams(temperature=1, top_k=CANDIDATES, seed=3),
    SamplingParams(temperature=1, top_k=1, seed=3),
    SamplingParams(temperature=0.9, top_p=0.8, seed=4),
    SamplingParams(temperature=0.9, top_k=20, top_p=0.5, seed=4),
    SamplingParams(temperature=1.1, min_p=0.05, seed=5),
    SamplingParams(temperature=0.8, top_k=50, top_p=0.95, min_p=0.02, seed=6),
]


def peaked(vocabulary: int, seed: int) -> npt.NDArray[np.float32]:
    """Logits as language models give them: few tokens have nearly all of the mass."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(vocabulary, dtype=np.float32) * np.float32(2)
    x[rng.integers(vocabulary, size=20)] += np.float32(20) + np.float32(4) * rng.random(
        20, dtype=np.float32
    )
    return x


@pytest.mark.parametrize("sampling", SAMPLINGS[1:])
def test_in_rejection_mode_it_is_drawn_from_exactly_what_is_stated(
    sampling: SamplingParams,
) -> None:
    logits = peaked(5000, seed=1)
    proposer = Proposer(logits.size)
    q = distribution(logits, sampling)
    drawn = []
    for position in range(400):
        proposal = proposer.propose(logits, position, sampling, mode=VerifyMode.REJECTION)
        assert proposal.q == quantize(q)
        assert proposal.q is not None
        assert proposal.q.weight(proposal.token) > 0
        assert proposal.confidence == max(proposal.q.weights) / sum(proposal.q.weights)
        drawn.append(proposal.token)
    # Off by more than this in fewer than 1e-6 of all seeds (McDiarmid; see the acceptance tests).
    share = np.bincount(drawn, minlength=logits.size) / len(drawn)
    off = float(np.abs(share - dense(quantize(q), logits.size)).sum()) / 2
    assert off < 0.5 * (15 / 400) ** 0.5 + (np.log(1e6) / 800) ** 0.5


def test_in_rejection_mode_a_greedy_draft_is_one_hot() -> None:
    proposal = Proposer(50).propose(peaked(50, 1), 3, SamplingParams(), mode=VerifyMode.REJECTION)
    assert proposal.q is None
    assert proposal.token == peaked(50, 1).argmax()


@pytest.mark.parametrize("vocabulary", [50, 4095, 4096, 5000, 49152, 262144])
def test_the_likeliest_are_found_whatever_the_vocabulary(vocabulary: int) -> None:
    for seed in range(5):
        logits = peaked(vocabulary, seed)
        ids = likeliest(logits, 64)
        best = np.sort(logits)[::-1][:64]
        assert np.all(np.diff(ids) > 0)
        assert np.array_equal(np.sort(logits[ids])[::-1][:64], best)
        assert len(ids) <= 3 * 64


def test_equal_logits_are_all_candidates() -> None:
    assert len(likeliest(np.zeros(8192, np.float32), 64)) == 8192


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=repr)
def test_a_proposal_is_what_a_target_with_these_logits_would_say(sampling: SamplingParams) -> None:
    """By chance a target's token lies outside the candidates: 0 of 30 with these seeds."""
    proposer = Proposer(49152)
    for position in range(30):
        logits = peaked(49152, position)
        x = log_weights(logits, sampling)
        if not sampling.greedy:
            x = x + gumbel_at(sampling.seed, position, np.arange(49152))
        given = proposer.propose(logits, position, sampling)
        assert given.token == x.argmax()
        confidence = SamplingParams(temperature=1) if sampling.greedy else sampling
        q = distribution(logits, confidence)[given.token]
        assert given.confidence == pytest.approx(q, rel=1e-4)


def test_logits_are_left_alone() -> None:
    logits = peaked(49152, 1)
    before = logits.copy()
    proposer = Proposer(49152)
    proposer.perturb_logits(2.0, 1)
    for sampling in SAMPLINGS:
        proposer.propose(logits, 5, sampling)
    assert np.array_equal(logits, before)


def test_noise_of_no_size_is_none() -> None:
    logits, plain, spoilt = peaked(49152, 1), Proposer(49152), Proposer(49152)
    spoilt.perturb_logits(1.0, 9)
    spoilt.perturb_logits(0.0, 9)
    for sampling in SAMPLINGS:
        assert spoilt.propose(logits, 5, sampling) == plain.propose(logits, 5, sampling)


def test_noise_lowers_agreement_by_its_size_and_depends_on_seed_and_position_only() -> None:
    def tokens(size: float, seed: int = 1) -> list[int]:
        proposer = Proposer(8192)
        proposer.perturb_logits(size, seed)
        return [proposer.propose(peaked(8192, n), n, SamplingParams()).token for n in range(200)]

    plain = tokens(0)
    agreed = [sum(map(int.__eq__, plain, tokens(size))) for size in (0.25, 1, 4)]
    assert 200 > agreed[0] > agreed[1] > agreed[2] > 0
    assert tokens(1) == tokens(1)
    assert tokens(1) != tokens(1, seed=2)


def test_noise_has_the_standard_deviation_asked_for() -> None:
    """The log odds of two equal tokens are off by √2 of it; 2,000 draws, 5 σ: false alarm 1e-6."""
    proposer = Proposer(2)
    proposer.perturb_logits(0.5, 3)
    odds = []
    for position in range(2000):
        given = proposer.propose(np.zeros(2, np.float32), position, SamplingParams())
        sign = 1 if given.token else -1
        odds.append(sign * np.log(given.confidence / (1 - given.confidence)))
    assert np.mean(odds) == pytest.approx(0, abs=5 * 0.5 * np.sqrt(2 / 2000))
    assert np.std(odds) == pytest.approx(0.5 * np.sqrt(2), rel=0.1)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("sampling", SAMPLINGS[:3], ids=repr)
def test_logits_without_a_greatest_one_are_a_fault(bad: float, sampling: SamplingParams) -> None:
    with pytest.raises(InternalError, match="greatest logit"):
        Proposer(8192).propose(np.full(8192, bad, np.float32), 1, sampling)
