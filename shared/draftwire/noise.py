"""Position-keyed randomness: every draw is a function of (seed, position) and nothing else.

Gumbel noise for `match` mode comes from a 32-bit hash of the token id, keyed by seed and
position: two murmur3-style finalizer rounds, each with a key of its own, so that noise at one
position is never a shifted or permuted copy of noise at another. Only integers are defined
here; any language that has 32-bit wrapping arithmetic gets the same ones. All 32 bits are used:
with fewer, uniforms tie exactly where winners live. For one position the hash is a bijection,
so no two tokens of a vocabulary share a value.

`rejection` mode draws single uniforms from streams that are independent by `Purpose`: a draft's
randomness shared with its recovery draw would bias the output.

Sources: splitmix64 (Steele et al. 2014) for the keys; finalizer constants from the search of
github.com/skeeto/hash-prospector, which are less biased than murmur3's own.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

NOISE_VERSION = 1
"""Rises whenever any value that this module returns changes."""

Bits: TypeAlias = NDArray[np.uint32]
Noise: TypeAlias = NDArray[np.float32]

ROUND = ((16, 0x21F0AAAD), (15, 0xD35A2D97), (15, 1))
"""A finalizer round: x ^= x >> shift (logical), x *= factor (mod 2³²), for each pair."""

_MASK64 = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


class Purpose(enum.IntEnum):
    """What a uniform of `rejection` mode is drawn for; each purpose is a stream of its own."""

    DRAFT = 1
    ACCEPT = 2
    RECOVER = 3
    BONUS = 4


_MATCH = 0  # stream of the Gumbel noise
_DERIVED = 5  # stream of seeds


def _absorb(state: int, word: int) -> int:
    """One splitmix64 step over a 64-bit word."""
    z = ((state ^ word) + _GOLDEN) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return z ^ (z >> 31)


def _key(seed: int, position: int, stream: int) -> int:
    return _absorb(_absorb(_absorb(0, seed), position), stream)


def derive_seed(seed: int, index: int) -> int:
    """The seed of the `index`-th of several generations that one seed stands for; 0: itself."""
    return _absorb(_absorb(_absorb(0, seed), index), _DERIVED) if index else seed


def round_keys(seed: int, position: int) -> tuple[int, int]:
    """Keys of the two rounds at a position, unsigned 32-bit each."""
    key = _key(seed, position, _MATCH)
    return key & 0xFFFFFFFF, key >> 32


def bits_at(seed: int, position: int, token_ids: NDArray[np.integer] | Sequence[int]) -> Bits:
    """Hash of (seed, position, token) per token id, uint32 [n]."""
    x = np.array(token_ids, dtype=np.uint32)
    shifted = np.empty_like(x)
    for key in round_keys(seed, position):
        x ^= np.uint32(key)
        for shift, factor in ROUND:
            np.right_shift(x, np.uint32(shift), out=shifted)
            x ^= shifted
            if factor != 1:
                x *= np.uint32(factor)
    return x


def bits(seed: int, positions: Sequence[int], vocab: int) -> Bits:
    """Hash of every token id below `vocab` at each position, uint32 [positions, vocab]."""
    ids = np.arange(vocab, dtype=np.uint32)
    out = np.empty((len(positions), vocab), dtype=np.uint32)
    for row, position in zip(out, positions, strict=True):
        row[:] = bits_at(seed, position, ids)
    return out


def from_bits(values: Bits) -> Noise:
    """Standard Gumbel noise −log(−log u) with u = (bits + ½) / 2³², float32 of the same shape.

    Logarithms are taken in float64: float32 ones differ between libraries in a third of the
    last bits.
    """
    u = (values + 0.5) * 2.0**-32
    noise: Noise = (-np.log(-np.log(u))).astype(np.float32)
    return noise


def gumbel_at(seed: int, position: int, token_ids: NDArray[np.integer] | Sequence[int]) -> Noise:
    """Noise of the given tokens at a position, float32 [n]: what drafting over candidates needs."""
    return from_bits(bits_at(seed, position, token_ids))


def gumbel(seed: int, positions: Sequence[int], vocab: int) -> Noise:
    """Noise of every token id below `vocab` at each position, float32 [positions, vocab]."""
    return from_bits(bits(seed, positions, vocab))


def uniform(seed: int, position: int, purpose: Purpose) -> float:
    """Uniform in [0, 1), a multiple of 2⁻⁵³, of one purpose's stream at a position."""
    return (_key(seed, position, purpose) >> 11) * 2.0**-53
