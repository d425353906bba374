"""From a draft model's logits to the token it proposes.

A draft is only a guess, so it looks at the likeliest tokens alone; among those it decides exactly
as the target does in `match` mode: `draftwire.sampling` with the noise of `draftwire.noise`.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from draftwire.errors import InternalError
from draftwire.noise import gumbel_at
from draftwire.sampling import divisor, keep_min_p, keep_top_k, keep_top_p, scale, weights
from draftwire.types import SamplingParams
from edge_client.drafter import Proposal

CANDIDATES = 64
"""How many of the likeliest tokens a sampled draft considers."""

_FOLD = 64  # tokens whose greatest logit stands for all of them in the search for candidates
_GUMBEL_MEAN, _GUMBEL_DEVIATION = 0.5772156649015329, math.pi / math.sqrt(6)

Logits = npt.NDArray[np.float32]
Ids = npt.NDArray[np.intp]


def likeliest(logits: Logits, count: int) -> Ids:
    """Ids of the `count` greatest logits and perhaps a few more, ascending.

    Costs a tenth of a partition: `count` of the folds have a greatest logit of at least some t,
    so the `count` greatest logits are all at least t, and hardly any other is.
    """
    folds = logits.size // _FOLD
    if folds >= 4 * count:
        maxima = logits[: folds * _FOLD].reshape(_FOLD, folds).max(axis=0)  # [folds]
    else:  # too few to tell: every token is a fold
        maxima = logits.copy()
    rank = max(0, maxima.size - count)
    maxima.partition(rank)
    return np.flatnonzero(logits >= maxima[rank])


class Proposer:
    """Chooses tokens; holds a scratch row, so that a draft allocates nothing vocabulary-sized."""

    def __init__(self, vocabulary_size: int) -> None:
        """For logits of `vocabulary_size`."""
        self._scratch = np.empty(vocabulary_size, np.float32)
        self._noise_size = 0.0
        self._noise_seed = 0

    def perturb_logits(self, size: float, seed: int) -> None:
        """Spoil the candidates' logits by noise of standard deviation `size`, 0 for none.

        The noise is a function of seed, position and token. Proposals and confidences are then
        those of a worse draft model: synthetic, for tests and benchmarks.
        """
        self._noise_size, self._noise_seed = size, seed

    def propose(self, logits: Logits, position: int, sampling: SamplingParams) -> Proposal:
        """The token for `position` (absolute) from `logits` [vocab], which are left alone.

        Greedy: the likeliest token. Else the argmax of log q + Gumbel noise, keyed by the
        sampling's seed, over the candidates that truncation leaves; its position and seed must
        be the target's, and verification accept-iff-equal: never use it inside min(1, p/q).
        The confidence is q of the token, after temperature and truncation (greedy: of the plain
        softmax). Raises `InternalError` for logits without a greatest one.
        """
        temperature = 1.0 if sampling.greedy else sampling.temperature
        greatest = float(logits.max())
        if not math.isfinite(greatest):
            raise InternalError(f"the draft model's greatest logit is {greatest}")
        if sampling.greedy and not self._noise_size:
            token = int(logits.argmax())
            return Proposal(token, 1.0 / self._mass(logits, greatest, temperature))

        ids = likeliest(logits, CANDIDATES)
        x, tail = self._candidates(logits, ids, position, sampling, temperature)
        w = weights(x)
        winner = int(x.argmax() if sampling.greedy else self._drawn(x, ids, position, sampling))
        return Proposal(int(ids[winner]), float(w[winner] / (w.sum() + tail)))

    def _drawn(self, x: Logits, ids: Ids, position: int, sampling: SamplingParams) -> np.intp:
        return (x + gumbel_at(sampling.seed, position, ids)).argmax()

    def _candidates(
        self,
        logits: Logits,
        ids: Ids,
        position: int,
        sampling: SamplingParams,
        temperature: float,
    ) -> tuple[Logits, float]:
        """Log weights of the candidates after truncation, and the weight of all other tokens."""
        chosen = logits[ids]
        greatest = float(chosen.max())
        top_k = 0 if sampling.greedy else sampling.top_k
        tail = 0.0
        if not 0 < top_k <= ids.size:
            own = float(weights(scale(chosen, temperature)).sum())
            tail = max(0.0, self._mass(logits, greatest, temperature) - own)
        if self._noise_size:
            noise = gumbel_at(self._noise_seed, position, ids) - np.float32(_GUMBEL_MEAN)
            chosen = chosen + noise * np.float32(self._noise_size / _GUMBEL_DEVIATION)
            # Weights are relative to the greatest logit, which is another one now.
            tail *= math.exp((greatest - float(chosen.max())) / temperature)
        x = scale(chosen, temperature)
        if sampling.greedy:
            return x, tail
        x = keep_top_k(x, top_k)
        if sampling.top_p < 1:
            # The mass that p is a share of includes the tail.
            mass = float(weights(x).sum())
            x = keep_top_p(x, sampling.top_p * (mass + tail) / mass)
        x = keep_min_p(x, sampling.min_p)
        # The tail ranks below every candidate: where one is removed, so is all of it.
        return x, 0.0 if np.isneginf(x).any() else tail

    def _mass(self, logits: Logits, greatest: float, temperature: float) -> float:
        """Sum over the vocabulary of exp((logit − greatest) / temperature)."""
        scratch = self._scratch
        np.subtract(logits, np.float32(greatest), out=scratch)
        if temperature != 1.0:
            with np.errstate(over="ignore"):
                scratch /= divisor(temperature)
        np.exp(scratch, out=scratch)
        return float(scratch.sum())
