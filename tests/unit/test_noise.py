"""Noise is pinned, keyed by position, uniform, and independent of its neighbours.

Statistical tests are seeded. Each statistic is compared with LIMIT standard deviations: a false
alarm has probability below 1e-9 a statistic, below 1e-6 for all of them together.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from draftwire import noise
from draftwire.noise import Bits, Purpose

LIMIT = 6.1
VOCAB = 49152
SEED = 20_250_101


def deviations(counts: NDArray[np.integer]) -> float:
    """Chi-square of equally likely cells as standard deviations (Wilson–Hilferty)."""
    expected = counts.sum() / counts.size
    freedom = counts.size - 1
    ratio = float(((counts - expected) ** 2).sum() / expected / freedom)
    spread = 2 / (9 * freedom)
    return float((ratio ** (1 / 3) - (1 - spread)) / spread**0.5)


def assert_uniform(cells: NDArray[np.integer], number: int) -> None:
    assert abs(deviations(np.bincount(cells.ravel(), minlength=number))) < LIMIT


def assert_independent(a: Bits, b: Bits) -> None:
    """Pairs fall evenly into 64 × 64 cells by top, middle and low bits, and don't correlate."""
    for shift in (26, 13, 0):
        cells = ((a >> np.uint32(shift)) & 63) * 64 + ((b >> np.uint32(shift)) & 63)
        assert_uniform(cells.astype(np.int64), 4096)
    u, v = a.ravel() / 2**32 - 0.5, b.ravel() / 2**32 - 0.5
    assert abs(float((u * v).mean()) * 12 * u.size**0.5) < LIMIT


@pytest.fixture(scope="module")
def block() -> Bits:
    """Hashes of 32 neighbouring positions, uint32 [32, vocab]."""
    return noise.bits(SEED, range(1000, 1032), VOCAB)


# ------------------------------------------------------------------ definition


def test_the_integers_are_pinned() -> None:
    # These are the interface to implementations in other languages: a change needs a new version.
    assert noise.NOISE_VERSION == 1
    assert noise.round_keys(0, 0) == (956087953, 595752380)
    last = 2**64 - 1
    assert noise.round_keys(last, 131071) == (3997356505, 1013277438)
    assert noise.bits_at(0, 0, [0, 1, 2, 49151]).tolist() == [
        0x7EE4B470,
        0x88A75DA7,
        0x7CE48091,
        0xCD9A770F,
    ]
    assert noise.bits_at(1, 0, [0, 1, 2]).tolist() == [0xEB557BAB, 0xCDF90F0D, 0x052EE76E]
    assert noise.bits_at(0, 1, [0, 1, 2]).tolist() == [0xD5475729, 0xC4689FFF, 0x7F0B0AFE]
    assert noise.bits_at(last, 131071, [0, 262143, 2**31 - 1]).tolist() == [
        0x091DF054,
        0x6C98A053,
        0x64C98720,
    ]


def test_the_floats_are_pinned() -> None:
    assert [float(g).hex() for g in noise.gumbel_at(0, 0, [0, 1, 2, 49151])] == [
        "0x1.6a8fae0000000p-2",
        "0x1.dcd35e0000000p-2",
        "0x1.53a1940000000p-2",
        "0x1.84841c0000000p+0",
    ]
    assert [noise.uniform(7, 11, purpose).hex() for purpose in Purpose] == [
        "0x1.d7a13e62506b4p-1",
        "0x1.5be2210be0be5p-1",
        "0x1.da8973aae3504p-2",
        "0x1.096cfbf7aa6b2p-2",
    ]


def test_noise_of_candidates_is_that_of_the_whole_row() -> None:
    rows = noise.gumbel(SEED, [7, 3], VOCAB)
    ids = np.array([49151, 0, 17, 17])
    assert rows.dtype == np.float32
    assert rows.shape == (2, VOCAB)
    assert np.array_equal(noise.gumbel_at(SEED, 3, ids), rows[1][ids])
    assert np.array_equal(noise.gumbel(SEED, [3], 100)[0], rows[1][:100])


def test_the_extreme_integers_give_finite_and_distinct_noise() -> None:
    ends = np.array([0, 1, 2**31, 2**32 - 2, 2**32 - 1], np.uint32)
    values = noise.from_bits(ends)
    assert np.isfinite(values).all()
    assert (np.diff(values) > 0).all()
    assert values[0] == pytest.approx(-math.log(33 * math.log(2)))
    assert values[-1] == pytest.approx(33 * math.log(2))


def test_the_arguments_are_left_alone() -> None:
    ids = np.arange(10, dtype=np.uint32)
    noise.gumbel_at(SEED, 1, ids)
    assert ids.tolist() == list(range(10))


# ------------------------------------------------------------------ quality


def test_integers_are_uniform(block: Bits) -> None:
    assert_uniform((block >> np.uint32(16)).astype(np.int64), 1 << 16)
    assert_uniform((block & np.uint32(0xFFFF)).astype(np.int64), 1 << 16)


def test_all_32_bits_are_used(block: Bits) -> None:
    for bit in range(32):
        ones = int(((block >> np.uint32(bit)) & 1).sum())
        assert abs(ones - block.size / 2) < LIMIT * (block.size / 4) ** 0.5


@pytest.mark.parametrize("bits", [8, 12, 16])
def test_the_tail_where_winners_live_is_filled_as_expected(block: Bits, bits: int) -> None:
    expected = block.size / 2**bits
    tail = int((block >= 2**32 - 2 ** (32 - bits)).sum())
    assert abs(tail - expected) < LIMIT * expected**0.5


@pytest.mark.parametrize("distance", [1, 2, 64, 1024, 16384])
def test_neighbouring_tokens_are_independent(block: Bits, distance: int) -> None:
    assert_independent(block[:, :-distance], block[:, distance:])


@pytest.mark.parametrize("distance", [1, 2, 3, 8, 16])
def test_neighbouring_positions_are_independent(block: Bits, distance: int) -> None:
    assert_independent(block[:-distance], block[distance:])


@pytest.mark.parametrize("shift", [1, 2, 17])
def test_a_position_is_no_shifted_copy_of_the_next(block: Bits, shift: int) -> None:
    assert_independent(block[:-1, shift:], block[1:, :-shift])
    assert_independent(block[:-1, :-shift], block[1:, shift:])


@pytest.mark.parametrize("bit", [0, 1, 16, 31, 32, 47, 63])
def test_seeds_that_differ_in_one_bit_are_independent(block: Bits, bit: int) -> None:
    other = noise.bits(SEED ^ 1 << bit, range(1000, 1032), VOCAB)
    assert_independent(block, other)


def test_seed_and_position_are_not_interchangeable(block: Bits) -> None:
    for seed, first in ((SEED + 1, 999), (SEED - 1, 1001), (SEED ^ 1000, 0)):
        assert_independent(block[:8], noise.bits(seed, range(first, first + 8), VOCAB))


@pytest.mark.slow
def test_values_repeat_no_more_often_than_chance_has_it(block: Bits) -> None:
    ordered = np.sort(block.ravel())
    repeats = int((ordered[1:] == ordered[:-1]).sum())
    pairs = 32 * 31 / 2 * VOCAB**2  # within a position the hash is a bijection
    expected = pairs / 2**32
    assert abs(repeats - expected) < LIMIT * expected**0.5
    assert all(np.unique(row).size == VOCAB for row in block)


@pytest.mark.slow
def test_positions_whose_first_keys_agree_share_no_values() -> None:
    # Keys equal in their high half give both positions the same integers, permuted, after the
    # first round: only the second key keeps them apart.
    seen: dict[int, int] = {}
    twins = []
    for position in range(1500):
        high = noise.round_keys(SEED, position)[0] >> 16
        if high in seen:
            twins.append((seen[high], position))
        seen[high] = position
    assert len(twins) > 5
    for a, b in twins:
        shared = np.intersect1d(*noise.bits(SEED, [a, b], 1 << 16))
        assert shared.size < 20  # one expected by chance; P(20 or more) < 1e-18


# ------------------------------------------------------------------ uniforms


@pytest.fixture(scope="module")
def streams() -> NDArray[np.float64]:
    """Uniforms of all purposes, float64 [purposes, 20000 positions]."""
    return np.array([[noise.uniform(SEED, t, p) for t in range(20_000)] for p in Purpose])


def test_uniforms_lie_in_the_half_open_unit_interval(streams: NDArray[np.float64]) -> None:
    assert streams.min() >= 0
    assert streams.max() < 1
    assert (streams * 2**53 % 1 == 0).all()
    assert np.unique(streams).size == streams.size
    for stream in streams:
        assert_uniform((stream * 256).astype(np.int64), 256)


def test_streams_are_independent_of_each_other_and_of_their_past(
    streams: NDArray[np.float64],
) -> None:
    # A draft's randomness shared with the recovery draw biases the output.
    scaled = (streams * 2**32).astype(np.uint32)
    for i in range(len(Purpose)):
        assert_pairs(scaled[i, 1:], scaled[i, :-1])
        for j in range(i):
            assert_pairs(scaled[i], scaled[j])
            assert_pairs(scaled[i, 1:], scaled[j, :-1])
            assert_pairs(scaled[i, :-1], scaled[j, 1:])


@pytest.mark.slow
def test_streams_are_independent_of_match_noise(streams: NDArray[np.float64]) -> None:
    first = np.array([noise.bits_at(SEED, t, [0])[0] for t in range(20_000)], np.uint32)
    for stream in (streams * 2**32).astype(np.uint32):
        assert_pairs(stream, first)


def assert_pairs(a: Bits, b: Bits) -> None:
    cells = (a >> np.uint32(28)) * 16 + (b >> np.uint32(28))
    assert_uniform(cells.astype(np.int64), 256)
