"""p of the rows of a pass, in torch: only as much of each as `rejection` mode looks at.

Of a truncated row the few tokens that are kept are held on the CPU; of another, the sum of its
weights, and the row itself where it is until a token must be drawn from it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from cloud_verifier.verify import finite_best, kept_tokens, rows_at_once, scaled
from draftwire.acceptance import draw
from draftwire.sampling import Probabilities, truncates, weights
from draftwire.types import CompactDistribution, SamplingParams


class Distribution:
    """p at one position."""

    def __init__(
        self,
        x: torch.Tensor | NDArray[np.float32],
        ids: NDArray[np.int64] | None,
        total: float,
    ) -> None:
        """Log weights `x` of the tokens `ids`, rising, or of all; their weights sum to `total`."""
        self._x = x
        self._ids = ids
        self._total = total

    def probability(self, token: int) -> float:
        """p of a token."""
        if self._ids is None:
            return float(np.exp(np.float64(self._x[token]))) / self._total
        at = int(np.searchsorted(self._ids, token))
        if at == self._ids.size or self._ids[at] != token:
            return 0.0
        return float(np.exp(np.float64(self._x[at]))) / self._total

    def draw(self, u: float) -> int:
        """The token whose share of the cumulated mass holds u."""
        return self._named(draw(self._dense(), u))

    def recover(self, draft: int, stated: CompactDistribution | None, u: float) -> int:
        """A token drawn from max(0, p − q)/Σ, or from p where nothing is left of it."""
        p = self._dense()
        left = p.copy()
        tokens, q = shares(draft, stated)
        if self._ids is None:
            left[tokens] -= q
        else:
            at = np.searchsorted(self._ids, tokens)
            known = at < self._ids.size
            known[known] = self._ids[at[known]] == tokens[known]
            left[at[known]] -= q[known]
        np.maximum(left, 0.0, out=left)
        return self._named(draw(left if left.sum() > 0 else p, u))

    def _dense(self) -> Probabilities:
        x = self._x.cpu().numpy() if isinstance(self._x, torch.Tensor) else self._x
        w = weights(x)
        p: Probabilities = w / w.sum()
        return p

    def _named(self, index: int) -> int:
        return index if self._ids is None else int(self._ids[index])


def shares(
    draft: int, stated: CompactDistribution | None
) -> tuple[NDArray[np.int64], Probabilities]:
    """Tokens and probabilities of the distribution that a draft is said to come from."""
    if stated is None:
        return np.array([draft]), np.ones(1)
    q = np.frombuffer(stated.weights, np.uint8).astype(np.float64)
    return np.array(stated.tokens), q / q.sum()


def distributions(logits: torch.Tensor, sampling: Sequence[SamplingParams]) -> list[Distribution]:
    """p of each row of `logits` [rows, vocab] under its own parameters.

    Raises `InternalError` if a row has no finite greatest logit.
    """
    best, first = finite_best(logits)
    at_once = rows_at_once(logits.device)
    out: dict[int, Distribution] = {}
    for row, one in enumerate(sampling):
        if one.greedy:
            out[row] = Distribution(np.zeros(1, np.float32), np.array([first[row]]), 1.0)
    for truncating in (False, True):
        rows = [
            row
            for row, one in enumerate(sampling)
            if not one.greedy and truncates(one) is truncating
        ]
        for start in range(0, len(rows), at_once):
            block = rows[start : start + at_once]
            params = [sampling[row] for row in block]
            x = scaled(logits, best, block, params)
            if truncating:
                for row, (ids, kept) in zip(block, kept_tokens(x, params), strict=True):
                    out[row] = Distribution(kept, ids, float(weights(kept).sum()))
            else:
                totals = x.double().exp_().sum(dim=-1).tolist()
                for at, row in enumerate(block):
                    out[row] = Distribution(x[at], None, totals[at])
    return [out[row] for row in range(len(sampling))]
