"""From logits to the distribution a token is drawn from: the one definition, for both sides.

The order is: repetition, frequency and presence penalties, logit bias → grammar mask →
temperature → top-k → top-p → min-p → softmax.
Ties: of equal log weights the lower token id ranks first, in every step. Top-k keeps exactly k.
Top-p keeps the shortest run of ranks whose mass reaches p, of what top-k left. Min-p keeps what
has at least that share of the most likely token's probability.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from draftwire.adjust import Adjustment
from draftwire.errors import InternalError
from draftwire.types import SamplingParams

LogWeights: TypeAlias = NDArray[np.float32]
Probabilities: TypeAlias = NDArray[np.float64]

_REMOVED = np.float32(-np.inf)


def truncates(sampling: SamplingParams) -> bool:
    """Whether any token could be removed."""
    return sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0


def divisor(temperature: float) -> np.float32:
    """The temperature as float32, never 0: a tiny one is greedy in effect, not a NaN."""
    return max(np.float32(temperature), np.finfo(np.float32).tiny)


def scale(logits: NDArray[np.floating], temperature: float) -> LogWeights:
    """Log weights at a temperature above 0: (logit − greatest logit) / temperature.

    Raises `InternalError` if there is no greatest logit: NaN, +inf, or all of them −inf.
    """
    x = logits.astype(np.float32)
    top = x.max()
    if not np.isfinite(top):
        raise InternalError(f"the greatest logit is {top}")
    with np.errstate(over="ignore"):  # beyond float32 the weight is 0
        scaled: LogWeights = (x - top) / divisor(temperature)
    return scaled


def keep_first(x: LogWeights, count: int) -> LogWeights:
    """Keep the `count` most likely tokens, all if there are no more."""
    if count >= x.size:
        return x
    lowest = np.partition(x, x.size - count)[x.size - count]
    kept = x > lowest
    kept[np.flatnonzero(x == lowest)[: count - np.count_nonzero(kept)]] = True
    return np.where(kept, x, _REMOVED)


def keep_top_k(x: LogWeights, k: int) -> LogWeights:
    """Keep the k most likely tokens; 0 keeps all."""
    return keep_first(x, k) if k else x


def keep_top_p(x: LogWeights, p: float, total: float | None = None) -> LogWeights:
    """Keep the fewest most likely tokens whose mass is at least p, at least one; 1 keeps all.

    p is a share of the sum of `weights`, or of `total` where x holds the most likely tokens only.
    """
    if p >= 1:
        return x
    mass = np.cumsum(weights(np.sort(x)[::-1]))
    needed = p * (mass[-1] if total is None else total)
    return keep_first(x, int(np.searchsorted(mass, needed)) + 1)


def keep_min_p(x: LogWeights, share: float) -> LogWeights:
    """Keep tokens at least `share` times as likely as the most likely one; 0 keeps all."""
    return np.where(weights(x) >= share, x, _REMOVED) if share > 0 else x


def truncate(x: LogWeights, sampling: SamplingParams, total: float | None = None) -> LogWeights:
    """Top-k, top-p and min-p of log weights whose greatest is 0.

    `x` may hold the most likely tokens only, in the order of their ids: all that could be kept.
    `total` is then the sum of `weights` of the whole vocabulary, which top-p without top-k needs.
    """
    x = keep_top_k(x, sampling.top_k)
    x = keep_top_p(x, sampling.top_p, None if sampling.top_k else total)
    return keep_min_p(x, sampling.min_p)


def weights(x: LogWeights) -> Probabilities:
    """exp of log weights whose greatest is 0, float64: probabilities times a constant."""
    w: Probabilities = np.exp(x, dtype=np.float64)
    return w


def log_weights(
    logits: NDArray[np.floating], sampling: SamplingParams, adjustment: Adjustment | None = None
) -> LogWeights:
    """log p up to a constant, float32 [vocab]: 0 for the most likely token, −inf for removed ones.

    Greedy is a distribution too: one-hot at the greatest logit, the lowest id among equals.
    Raises `InternalError` for logits without a greatest one.
    """
    if adjustment is not None:
        logits = adjustment.apply(logits)
    if sampling.greedy:
        return keep_first(scale(logits, 1.0), 1)
    return truncate(scale(logits, sampling.temperature), sampling)


def distribution(
    logits: NDArray[np.floating], sampling: SamplingParams, adjustment: Adjustment | None = None
) -> Probabilities:
    """Probabilities, float64 [vocab]: softmax of `log_weights`."""
    w = weights(log_weights(logits, sampling, adjustment))
    p: Probabilities = w / w.sum()
    return p
