"""From a draft model's logits to the token it proposes.

A draft is only a guess, so it looks at the likeliest tokens alone; among those it decides exactly
as the target does in `match` mode: `draftwire.sampling` with the noise of `draftwire.noise`.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from draftwire.acceptance import draw, quantize
from draftwire.adjust import Adjustment
from draftwire.errors import InternalError
from draftwire.noise import Purpose, gumbel_at, uniform
from draftwire.sampling import (
    divisor,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    truncates,
    weights,
)
from draftwire.types import CompactDistribution, SamplingParams, VerifyMode
from edge_client.drafter import Proposal

CANDIDATES = 64
"""How many of the likeliest tokens a sampled draft considers."""

_FOLD = 64  # tokens whose greatest logit stands for all of them in the search for candidates
_LEAST = np.finfo(np.float32).min
_GUMBEL_MEAN, _GUMBEL_DEVIATION = 0.5772156649015329, math.pi / math.sqrt(6)

Logits = npt.NDArray[np.float32]
Ids = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]


def likeliest(logits: Logits, count: int, mask: Mask | None = None) -> Ids:
    """Ids of the `count` greatest logits and perhaps a few more, ascending.

    Costs a tenth of a partition: `count` of the folds have a greatest logit of at least some t,
    so the `count` greatest logits are all at least t, and hardly any other is. `mask` [vocab] is
    scratch.
    """
    folds = logits.size // _FOLD
    if folds >= 4 * count:
        maxima = logits[: folds * _FOLD].reshape(_FOLD, folds).max(axis=0)  # [folds]
    else:  # too few to tell: every token is a fold
        maxima = logits.copy()
    rank = max(0, maxima.size - count)
    maxima.partition(rank)
    least = max(maxima[rank], _LEAST)  # what was removed is no candidate, however few are left
    ids: Ids = np.greater_equal(logits, least, out=mask).nonzero()[0]
    return ids


def _truncated(
    x: Logits, mass: float, tail: float, sampling: SamplingParams
) -> tuple[Logits, float]:
    """Log weights after top-k, top-p and min-p, and the weight left outside the candidates."""
    if sampling.top_k:
        x = keep_top_k(x, sampling.top_k)
    if sampling.top_p < 1:
        if 0 < sampling.top_k < x.size:
            mass = float(weights(x).sum())
        # p is a share of the whole mass, tail included.
        x = keep_top_p(x, sampling.top_p * (mass + tail) / mass)
    x = keep_min_p(x, sampling.min_p)
    # The tail ranks below every candidate: where one is removed, so is all of it.
    return x, 0.0 if np.isneginf(x).any() else tail


def drawn(q: CompactDistribution, seed: int, position: int) -> Proposal:
    """A token drawn from exactly this q; its confidence is the greatest probability in it."""
    weights = np.frombuffer(q.weights, np.uint8).astype(np.float64)
    token = q.tokens[draw(weights, uniform(seed, position, Purpose.DRAFT))]
    return Proposal(token, float(weights.max() / weights.sum()), q)


def _compact(ids: Ids, w: npt.NDArray[np.float64]) -> CompactDistribution:
    """The likeliest of some tokens, given with their weights, as they can be stated."""
    compact = quantize(w / w.sum())
    return replace(compact, tokens=ids[list(compact.tokens)].tolist())


class Proposer:
    """Chooses tokens; holds scratch rows, so that a draft allocates nothing vocabulary-sized.

    It runs right after a decode has swept the processor's caches, where every numpy call costs
    10 to 30 µs however little it does: hence few calls, and shortcuts past those that do nothing.
    """

    def __init__(self, vocabulary_size: int) -> None:
        """For logits of `vocabulary_size`."""
        self._scratch = np.empty(vocabulary_size, np.float32)
        self._mask = np.empty(vocabulary_size, np.bool_)
        self._noise_size = 0.0
        self._noise_seed = 0

    def perturb_logits(self, size: float, seed: int) -> None:
        """Spoil the candidates' logits by noise of standard deviation `size`, 0 for none.

        The noise is a function of seed, position and token. Proposals and confidences are then
        those of a worse draft model: synthetic, for tests and benchmarks.
        """
        self._noise_size, self._noise_seed = size, seed

    def propose(
        self,
        logits: Logits,
        position: int,
        sampling: SamplingParams,
        adjustment: Adjustment | None = None,
        mode: VerifyMode = VerifyMode.MATCH,
    ) -> Proposal:
        """The token for `position` (absolute) from `logits` [vocab], which are left alone.

        Greedy: the likeliest token. Else the argmax of log q + Gumbel noise, keyed by the
        sampling's seed, over the candidates that truncation leaves; its position and seed must
        be the target's, and verification accept-iff-equal: never use it inside min(1, p/q). In
        `rejection` mode the token is drawn from the likeliest of them, as `drawn` says.
        The confidence is q of the token, after temperature and truncation (greedy: of the
        softmax of the adjusted logits). Raises `InternalError` for logits without a greatest one.
        """
        if adjustment is not None:
            logits = adjustment.apply(logits)
        token = int(logits.argmax())
        greatest = logits[token]
        if not math.isfinite(greatest):  # argmax finds NaN, too
            raise InternalError(f"the draft model's greatest logit is {greatest}")
        temperature = np.float32(1) if sampling.greedy else divisor(sampling.temperature)
        scaled = self._scale(logits, greatest, temperature)
        if sampling.greedy and not self._noise_size:
            return Proposal(token, 1.0 / float(np.exp(scaled, out=scaled).sum()))

        ids = likeliest(scaled, CANDIDATES, self._mask)
        x = scaled[ids]
        w = weights(x)
        mass = float(w.sum())
        tail = 0.0  # weight of all other tokens
        if sampling.greedy or not 0 < sampling.top_k <= ids.size:
            tail = max(0.0, float(np.exp(scaled, out=scaled).sum()) - mass)
        if self._noise_size:
            x, shift = self._spoilt(x, ids, position, temperature)
            w, tail = weights(x), tail * shift
            mass = float(w.sum())
        if sampling.greedy:
            winner = int(x.argmax())
        else:
            if truncates(sampling):
                x, tail = _truncated(x, mass, tail, sampling)
                w = weights(x)
                mass = float(w.sum())
            if mode is VerifyMode.REJECTION:
                return drawn(_compact(ids, w), sampling.seed, position)
            winner = int((x + gumbel_at(sampling.seed, position, ids)).argmax())
        return Proposal(int(ids[winner]), float(w[winner]) / (mass + tail))

    def _scale(self, logits: Logits, greatest: np.float32, temperature: np.float32) -> Logits:
        """`draftwire.sampling.scale` into the scratch row."""
        scaled = np.subtract(logits, greatest, out=self._scratch)
        if temperature != 1:
            with np.errstate(over="ignore"):
                scaled /= temperature
        return scaled

    def _spoilt(
        self, x: Logits, ids: Ids, position: int, temperature: np.float32
    ) -> tuple[Logits, float]:
        """Log weights with noise on their logits, and the factor of all weights in the tail."""
        noise = gumbel_at(self._noise_seed, position, ids) - np.float32(_GUMBEL_MEAN)
        x = x + noise * (np.float32(self._noise_size / _GUMBEL_DEVIATION) / temperature)
        # Weights are relative to the greatest, which is another one now.
        greatest = x.max()
        return x - greatest, math.exp(-float(greatest))
