"""Truncation, against its definition in words, over logits that tie as half precision does."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwire.sampling import distribution
from draftwire.types import SamplingParams

logits = st.lists(st.integers(-12, 12), min_size=1, max_size=24).map(
    lambda steps: np.array(steps, np.float32) / 4
)
params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.25, 1.0, 2.0]),
    top_k=st.integers(0, 26),
    top_p=st.floats(0.01, 1.0),
    min_p=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
)


@settings(max_examples=300)
@given(logits, params)
def test_what_is_kept_is_the_shortest_allowed_prefix_of_the_ranking(
    x: np.ndarray, sampling: SamplingParams
) -> None:
    plain = np.exp((x.astype(np.float64) - x.max()) / sampling.temperature)
    ranking = sorted(range(x.size), key=lambda i: (-x[i], i))
    prefix = ranking[: sampling.top_k or None]
    share = np.cumsum(plain[prefix]) / plain[prefix].sum()
    slack = 1e-9  # where a mass is reached to the last bit, either count will do
    fewest = min(len(prefix), 1 + int((share < sampling.top_p - slack).sum()))
    most = min(len(prefix), 1 + int((share < sampling.top_p + slack).sum()))
    likely = int((plain[prefix] >= sampling.min_p * (1 - slack)).sum())

    p = distribution(x, sampling)
    kept = np.flatnonzero(p).tolist()
    assert sorted(prefix[: len(kept)]) == kept
    assert min(fewest, likely) <= len(kept) <= min(most, likely)
    np.testing.assert_allclose(p[kept], plain[kept] / plain[kept].sum(), rtol=1e-5)


@given(logits, params)
def test_it_is_a_distribution_that_favours_the_greatest_logit(
    x: np.ndarray, sampling: SamplingParams
) -> None:
    p = distribution(x, sampling)
    assert (p >= 0).all()
    assert abs(p.sum() - 1) < 1e-12
    assert p[x.argmax()] == p.max() > 0
