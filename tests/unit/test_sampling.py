"""Logits become a distribution in one order, with exact tie rules."""

from __future__ import annotations

import numpy as np
import pytest

from draftwire.errors import InternalError
from draftwire.sampling import distribution, log_weights, scale, truncates
from draftwire.types import SamplingParams


def logits_of(*probabilities: float) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    with np.errstate(divide="ignore"):
        return np.log(np.array(probabilities)).astype(np.float32)


def kept(logits: np.ndarray[tuple[int], np.dtype[np.float32]], **params: float) -> list[int]:
    sampling = SamplingParams(**{"temperature": 1.0, **params})  # type: ignore[arg-type]
    return np.flatnonzero(distribution(logits, sampling)).tolist()  # type: ignore[no-any-return]


def test_without_parameters_it_is_softmax() -> None:
    p = distribution(np.log([1.0, 2.0, 5.0]), SamplingParams(temperature=1.0))
    assert p == pytest.approx([0.125, 0.25, 0.625])
    assert p.dtype == np.float64


def test_temperature_sharpens_and_flattens() -> None:
    logits = np.log([1.0, 4.0])
    assert distribution(logits, SamplingParams(temperature=0.5)) == pytest.approx([1 / 17, 16 / 17])
    assert distribution(logits, SamplingParams(temperature=2.0)) == pytest.approx([1 / 3, 2 / 3])


def test_temperature_zero_is_one_hot_at_the_lowest_of_equals() -> None:
    # A drafter needs a distribution at temperature 0 too, or it stops drafting.
    for extra in ({}, {"top_k": 3}, {"top_p": 0.1}, {"min_p": 1.0}):
        p = distribution(np.array([1.0, 3.0, 3.0]), SamplingParams(temperature=0.0, **extra))
        assert p.tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("temperature", [1e-45, 1e-300, 1e-38, 1e-6])
def test_a_tiny_temperature_is_greedy_in_effect(temperature: float) -> None:
    p = distribution(np.array([-5.0, 2.0, 1.0]), SamplingParams(temperature=temperature))
    assert p.tolist() == [0.0, 1.0, 0.0]


def test_top_k_keeps_exactly_k_and_the_lowest_ids_of_equals() -> None:
    logits = np.array([1.0, 2.0, 1.0, 1.0, 3.0], np.float32)
    assert kept(logits, top_k=3) == [0, 1, 4]
    assert kept(logits, top_k=4) == [0, 1, 2, 4]
    assert kept(logits, top_k=99) == [0, 1, 2, 3, 4]
    assert kept(logits, top_k=0) == [0, 1, 2, 3, 4]


def test_top_p_keeps_the_fewest_that_reach_it() -> None:
    logits = logits_of(0.1, 0.4, 0.2, 0.3)
    assert kept(logits, top_p=0.35) == [1]
    assert kept(logits, top_p=0.45) == [1, 3]
    assert kept(logits, top_p=0.95) == [0, 1, 2, 3]
    assert kept(logits, top_p=1e-9) == [1]


def test_top_p_counts_a_mass_that_is_just_reached() -> None:
    ten_equal = np.zeros(10, np.float32)
    assert kept(ten_equal, top_p=0.9) == list(range(9))
    assert kept(ten_equal, top_p=0.5) == list(range(5))
    assert kept(ten_equal, top_p=0.51) == list(range(6))


def test_min_p_is_relative_to_the_most_likely_token() -> None:
    logits = logits_of(0.5, 0.3, 0.15, 0.05)
    assert kept(logits, min_p=0.2) == [0, 1, 2]
    assert kept(logits, min_p=0.5) == [0, 1]
    assert kept(np.array([1.0, 1.0, 0.0]), min_p=1.0) == [0, 1]


def test_temperature_comes_before_truncation() -> None:
    logits = logits_of(0.6, 0.3, 0.1)
    assert kept(logits, top_p=0.8) == [0, 1]
    assert kept(logits, top_p=0.8, temperature=0.3) == [0]
    assert kept(logits, min_p=0.3) == [0, 1]
    assert kept(logits, min_p=0.3, temperature=2.0) == [0, 1, 2]


def test_top_p_is_a_share_of_what_top_k_left() -> None:
    logits = logits_of(0.3, 0.3, 0.2, 0.2)
    assert kept(logits, top_p=0.5) == [0, 1]
    assert kept(logits, top_p=0.5, top_k=2) == [0]


def test_what_is_left_is_renormalised() -> None:
    p = distribution(logits_of(0.5, 0.25, 0.125, 0.125), SamplingParams(temperature=1.0, top_k=2))
    assert p == pytest.approx([2 / 3, 1 / 3, 0, 0])


def test_removed_tokens_stay_removed() -> None:
    # A mask sets −inf: no truncation may bring such a token back.
    logits = np.array([-np.inf, 0.0, -np.inf, -1.0], np.float32)
    for params in ({}, {"top_k": 3}, {"top_p": 0.999}, {"min_p": 0.01}, {"temperature": 100.0}):
        assert kept(logits, **params) == [1, 3]


def test_log_weights_are_log_probabilities_up_to_a_constant() -> None:
    logits = np.array([0.5, -1.0, 2.0, 1.0], np.float32)
    sampling = SamplingParams(temperature=0.7, top_k=3)
    x, p = log_weights(logits, sampling), distribution(logits, sampling)
    assert x.dtype == np.float32
    assert x.max() == 0
    assert np.isneginf(x).tolist() == [False, True, False, False]
    assert (x + np.log(p.max()))[p > 0] == pytest.approx(np.log(p[p > 0]))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_broken_logits_are_an_error_not_a_token(bad: float) -> None:
    for temperature in (0.0, 1.0):
        with pytest.raises(InternalError):
            distribution(np.array([0.0, bad, 1.0]), SamplingParams(temperature=temperature))
    with pytest.raises(InternalError):
        scale(np.array([-np.inf, -np.inf]), 1.0)


def test_half_precision_logits_are_raised_to_float32() -> None:
    logits = np.array([1.0, 1.5, -2.0], np.float16)
    assert log_weights(logits, SamplingParams(temperature=0.9)).dtype == np.float32


def test_truncation_is_recognised() -> None:
    assert not truncates(SamplingParams(temperature=0.7))
    for params in ({"top_k": 1}, {"top_p": 0.99}, {"min_p": 0.01}):
        assert truncates(SamplingParams(temperature=0.7, **params))
