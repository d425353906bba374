"""What verification rules promise whatever is drafted."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from draftwire.acceptance import dense, draw, match, match_token, quantize, rejection, typical
from draftwire.noise import Purpose, uniform
from draftwire.sampling import distribution
from draftwire.types import SamplingParams

VOCAB = 5
LENGTH = 16
TABLE = np.random.default_rng(3).normal(scale=1.5, size=(VOCAB, VOCAB, VOCAB))  # [a, b] → logits

seeds = st.integers(0, 2**64 - 1)
tokens = st.integers(0, VOCAB - 1)
weights = st.lists(st.integers(0, 1000), min_size=VOCAB, max_size=VOCAB).filter(any)
distributions = weights.map(lambda w: np.array(w) / sum(w))
params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 1.3]),
    top_k=st.sampled_from([0, 2, 3]),
    top_p=st.sampled_from([0.6, 1.0]),
    min_p=st.sampled_from([0.0, 0.2]),
    seed=seeds,
)


def target_token(text: list[int], sampling: SamplingParams) -> int:
    return match_token(TABLE[text[-2], text[-1]], len(text), sampling)


@given(params, st.lists(st.lists(tokens, max_size=4), max_size=LENGTH), st.booleans())
def test_match_gives_the_targets_own_text_whatever_is_drafted(
    sampling: SamplingParams, rounds: list[list[int]], helpful: bool
) -> None:
    """Random drafts, or ones that hold for a while; sampling applies to every row of a round."""
    alone = [0, 1]
    while len(alone) < LENGTH:
        alone.append(target_token(alone, sampling))

    text = [0, 1]
    for drafts in rounds:
        if helpful:
            drafts = [*alone[len(text) : len(text) + 2], *drafts]
        rows = [
            target_token([*text, *drafts[:j]], sampling) for j in range(len(drafts) + 1)
        ]  # as one pass computes them, on the drafts as context
        accepted, token = match(drafts, rows)
        text += [*drafts[:accepted], token]
    shared = min(len(text), LENGTH)
    assert text[:shared] == alone[:shared]


@given(
    st.lists(st.tuples(tokens, distributions, distributions, st.booleans()), max_size=4),
    distributions,
    seeds,
    st.integers(0, 2**20),
)
def test_rejection_commits_only_what_the_target_allows(
    drafted: list[tuple[int, np.ndarray, np.ndarray, bool]],
    last: np.ndarray,
    seed: int,
    start: int,
) -> None:
    drafts, p, q = [], [], []
    for draft, p_j, q_j, stated in drafted:
        drafts.append(draft)
        p.append(p_j)
        q.append(q_j if stated and q_j[draft] > 0 else None)
    accepted, token = rejection(drafts, [*p, last], q, seed=seed, start=start)
    assert 0 <= accepted <= len(drafts)
    assert all(p[j][drafts[j]] > 0 for j in range(accepted))
    assert [*p, last][accepted][token] > 0
    if accepted < len(drafts):
        assert token != drafts[accepted]
        stated = q[accepted]
        if stated is not None:
            # never rejected where p ≥ q, and recovered only where p > q
            assert p[accepted][drafts[accepted]] < stated[drafts[accepted]]
            assert p[accepted][token] > stated[token]


@given(distributions, st.integers(1, VOCAB))
def test_a_compact_distribution_is_close_to_its_source_and_survives_a_round_trip(
    q: np.ndarray, size: int
) -> None:
    compact = quantize(q, size)
    back = dense(compact, VOCAB)
    assert abs(back.sum() - 1) < 1e-12
    assert len(compact.tokens) <= size
    top = np.sort(q)[::-1][:size]
    kept = np.zeros(VOCAB)
    order = np.argsort(-q, kind="stable")[:size]
    kept[order] = q[order] / top.sum()
    assert np.abs(back - kept).sum() <= 2 * size / 255
    assert (dense(quantize(back, size), VOCAB) == back).all()  # weights that round alike may swap


@given(st.lists(tokens, max_size=4), st.lists(distributions, min_size=5, max_size=5))
def test_typical_accepts_a_prefix_and_goes_on_greedily(
    drafts: list[int], rows: list[np.ndarray]
) -> None:
    p = rows[: len(drafts) + 1]
    accepted, token = typical(drafts, p)
    assert token == int(p[accepted].argmax())
    assert accepted == 0 or drafts[0] == int(p[0].argmax())


@given(params, tokens, tokens)
def test_match_chooses_among_tokens_with_probability(
    sampling: SamplingParams, a: int, b: int
) -> None:
    logits = TABLE[a, b]
    assert distribution(logits, sampling)[match_token(logits, 2, sampling)] > 0


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), seeds, distributions, distributions)
def test_what_is_drawn_at_a_position_does_not_depend_on_other_rounds(
    rounds: list[int], seed: int, p: np.ndarray, q: np.ndarray
) -> None:
    """Rounds without drafts between others consume nothing: every stream is read by position."""
    at, alone, together = 0, [], []
    for count in rounds:
        drafts = [draw(q, uniform(seed, at + j, Purpose.DRAFT)) for j in range(count)]
        accepted, token = rejection(drafts, [p] * (count + 1), [q] * count, seed=seed, start=at)
        together += [*drafts[:accepted], token]
        for position, draft in enumerate(drafts[: accepted + 1], start=at):
            one = rejection([draft], [p, p], [q], seed=seed, start=position)
            alone.append(draft if one.accepted else one.token)
        if accepted == count:
            alone.append(rejection([], [p], [], seed=seed, start=at + count).token)
        at += accepted + 1
    assert together == alone
