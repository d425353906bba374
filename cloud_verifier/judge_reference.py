"""What a judgement is, in numpy and a row at a time: the definition that `judge` is held against.

The table target judges by it, too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cloud_verifier.target import Judgement, Row
from draftwire.acceptance import Outcome, dense, match, match_token, rejection, typical
from draftwire.sampling import distribution
from draftwire.types import TokenLogprobs, VerifyMode


def judge_row(row: Row, logits: NDArray[np.floating]) -> Judgement:
    """The judgement of a row from its logits, [drafts + 1, vocab]: one for each draft, one after.

    Raises `InternalError` if one of them has no finite greatest logit.
    """
    outcome = _outcome(row, logits)
    if not row.logprobs:
        return Judgement(*outcome)
    tokens = [*row.drafted[: outcome.accepted], outcome.token]
    return Judgement(
        *outcome,
        tuple(logprobs_of(x, t, row.logprobs) for x, t in zip(logits, tokens, strict=False)),
    )


def _outcome(row: Row, logits: NDArray[np.floating]) -> Outcome:
    if row.mode is not VerifyMode.MATCH:
        p = [
            distribution(x, row.sampling, change)
            for x, change in zip(logits, row.adjustments, strict=True)
        ]
        if row.mode is VerifyMode.TYPICAL:
            return typical(row.drafted, p)
        vocab = p[0].size
        q = [None if stated is None else dense(stated, vocab) for stated in row.stated]
        start = row.positions[0]
        return rejection(row.drafted, p, q, seed=row.sampling.seed, start=start)
    return match(
        row.drafted,
        [
            match_token(x, position, row.sampling, change)
            for x, position, change in zip(logits, row.positions, row.adjustments, strict=True)
        ],
    )


def logprobs_of(logits: NDArray[np.floating], token: int, count: int) -> TokenLogprobs:
    """The log-probability of `token` and those of the `count` − 1 likeliest, from raw logits."""
    x = logits.astype(np.float64)
    x -= x.max()
    x -= np.log(np.exp(x).sum())
    best = np.argsort(-x, kind="stable")[: count - 1]
    return TokenLogprobs(
        logprob=float(x[token]), top_tokens=best.tolist(), top_logprobs=x[best].tolist()
    )
