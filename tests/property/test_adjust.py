"""What changes raw logits is a function of the text before a position, however it came about."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from draftwire.adjust import Adjuster
from draftwire.types import SamplingParams, StopRules

VOCAB = 6
tokens = st.integers(0, VOCAB - 1)
texts = st.lists(tokens, max_size=12)
logits = st.lists(st.integers(-8, 8), min_size=VOCAB, max_size=VOCAB).map(
    lambda steps: np.array(steps, np.float32) / 3
)
params = st.builds(
    SamplingParams,
    repetition_penalty=st.sampled_from([1.0, 0.5, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.7, -0.4]),
    frequency_penalty=st.sampled_from([0.0, 0.3, -0.2]),
    logit_bias=st.dictionaries(tokens, st.sampled_from([-100.0, -1.5, 2.0]), max_size=3),
)
stops = st.builds(
    StopRules, min_tokens=st.integers(0, 6), token_ids=st.lists(tokens, max_size=2).map(tuple)
)
starts = st.integers(0, 6)


def by_definition(
    row: np.ndarray, text: list[int], start: int, sampling: SamplingParams, stop: StopRules
) -> np.ndarray:
    """One token after the other, as the parameters are documented."""
    written = Counter(text[start:])
    out = row.astype(np.float64)
    for token in range(VOCAB):
        if token in text:
            penalty = sampling.repetition_penalty
            out[token] = out[token] / penalty if out[token] > 0 else out[token] * penalty
        if token in written:
            out[token] -= sampling.presence_penalty
            out[token] -= sampling.frequency_penalty * written[token]
        out[token] += sampling.logit_bias.get(token, 0.0)
        early = len(text) < start + stop.min_tokens
        if token in {0, *stop.token_ids} and stop.min_tokens and early:
            out[token] = -np.inf
    return out


def changed(adjuster: Adjuster | None, row: np.ndarray) -> np.ndarray:
    change = adjuster.adjustment() if adjuster is not None else None
    return row if change is None else change.apply(row)


@given(logits, params, stops, starts, st.lists(texts, min_size=1, max_size=5))
def test_it_is_the_definition_whatever_texts_came_before(
    row: np.ndarray, sampling: SamplingParams, stop: StopRules, start: int, history: list[list[int]]
) -> None:
    adjuster = Adjuster.of(sampling, stop, start=start, eos_token_ids=(0,))
    for text in history:
        if adjuster is not None:
            adjuster.follow(text)
        expected = by_definition(row, text, start, sampling, stop)
        np.testing.assert_allclose(changed(adjuster, row), expected, rtol=1e-5, atol=1e-5)


@given(logits, params, stops, starts, texts, texts)
def test_drafts_count_for_later_rows_of_their_pass_and_leave_no_trace(
    row: np.ndarray,
    sampling: SamplingParams,
    stop: StopRules,
    start: int,
    text: list[int],
    drafts: list[int],
) -> None:
    adjuster = Adjuster.of(sampling, stop, start=start, eos_token_ids=(0,))
    if adjuster is None:
        return
    adjuster.extend(text)
    before = changed(adjuster, row)
    for at, change in enumerate(adjuster.along(drafts)):
        seen = row if change is None else change.apply(row)
        expected = by_definition(row, text + drafts[:at], start, sampling, stop)
        np.testing.assert_allclose(seen, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(changed(adjuster, row), before)
