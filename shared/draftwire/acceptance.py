"""Every verification rule in numpy: the reference that the batched verifier must agree with.

A round judges K drafts against K + 1 rows of the target: row j is its view of draft j, the last
row that of the token after all of them. p is the target's distribution and q the draft's, each
after its own side's processing (`draftwire.sampling`), on every row alike. All rules answer with
how many leading drafts hold and the token that comes next: the correction, or the bonus token.

- `match`: accept iff equal to the target's own token, which shared Gumbel noise makes likely.
  P(accept) ≥ (1 − TV) / (1 + TV), TV the total variation of p and q (Daliri et al., 2408.07978).
- `rejection`: speculative sampling, Leviathan et al. 2023 (arXiv 2211.17192) and Chen et al.
  2023 (arXiv 2302.01318). Exact in distribution iff q is what the draft was sampled from.
- `typical`: Cai et al. 2024, Medusa (arXiv 2401.10774). Lossy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftwire.adjust import Adjustment
from draftwire.errors import InvalidRequest
from draftwire.noise import Purpose, gumbel, uniform
from draftwire.sampling import Probabilities, log_weights
from draftwire.types import CompactDistribution, SamplingParams, Tokens


class Outcome(NamedTuple):
    """`accepted` leading drafts hold, then comes `token`."""

    accepted: int
    token: int


# ------------------------------------------------------------------ match


def match_token(
    logits: NDArray[np.floating],
    position: int,
    sampling: SamplingParams,
    adjustment: Adjustment | None = None,
) -> int:
    """The token at `position`: argmax of log p + noise(seed, position), the lowest id of equals.

    `logits` [vocab]. The target's token, and the best guess of it from a draft model's logits.
    Scores are float64 sums of float32 terms: float32 sums would tie where winners live.
    """
    x = log_weights(logits, sampling, adjustment).astype(np.float64)
    if not sampling.greedy:  # a single token is left: no noise changes it
        x += gumbel(sampling.seed, [position], x.size)[0]
    return int(np.argmax(x))


def match(drafts: Tokens, target_tokens: Tokens) -> Outcome:
    """Accept drafts while they equal the target's tokens, of which there is one more."""
    accepted = 0
    while accepted < len(drafts) and drafts[accepted] == target_tokens[accepted]:
        accepted += 1
    return Outcome(accepted, target_tokens[accepted])


# ------------------------------------------------------------------ rejection


def rejection(
    drafts: Tokens,
    p: Sequence[Probabilities],
    q: Sequence[Probabilities | None],
    *,
    seed: int,
    start: int,
) -> Outcome:
    """Accept draft d with probability min(1, p(d)/q(d)), else draw from max(0, p − q)/Σ.

    `p`: K + 1 rows [vocab]; `q`: K rows, None for one-hot at the draft, which is exact however
    the draft was chosen. `start` is the position of the first draft. Each decision draws from its
    own stream at its own position, so what is drawn depends neither on K nor on other rows.
    Raises `InvalidRequest` if a draft can't have come from the q that is stated for it.
    """
    for j, (draft, p_j, q_j) in enumerate(zip(drafts, p[:-1], q, strict=True)):
        stated = one_hot(draft, p_j.size) if q_j is None else q_j
        if not stated[draft] > 0:
            raise InvalidRequest(
                f"draft {draft} at position {start + j} has no weight in its own distribution",
                remedy="send the distribution that was sampled from, or none",
            )
        if uniform(seed, start + j, Purpose.ACCEPT) * stated[draft] < p_j[draft]:
            continue
        recovered = draw(residual(p_j, stated), uniform(seed, start + j, Purpose.RECOVER))
        if recovered != draft:  # p ≈ q can give it back: token equality is what accepted means
            return Outcome(j, recovered)
    end = len(drafts)
    return Outcome(end, draw(p[end], uniform(seed, start + end, Purpose.BONUS)))


def residual(p: Probabilities, q: Probabilities) -> Probabilities:
    """Weights to recover from: max(0, p − q), or p where that has no mass left (p ≈ q)."""
    left = np.maximum(0.0, p - q)
    return left if left.sum() > 0 else p


def draw(weights: NDArray[np.floating], u: float) -> int:
    """The token whose share of the cumulated weights holds u ∈ [0, 1); never one of weight 0."""
    mass = np.cumsum(weights, dtype=np.float64)
    index = int(np.searchsorted(mass, u * mass[-1], side="right"))
    # The product may round up to all of the mass.
    return index if index < mass.size else int(np.flatnonzero(weights)[-1])


def one_hot(token: int, vocab: int) -> Probabilities:
    """All probability on one token, float64 [vocab]."""
    p = np.zeros(vocab)
    p[token] = 1.0
    return p


def quantize(q: Probabilities, size: int = 16) -> CompactDistribution:
    """The `size` most likely tokens, weights in 1/255 of the greatest; those that round to 0 go.

    Drafts must be drawn from what this returns (`dense`), not from q: else output is biased.
    """
    top = np.sort(np.argsort(-q, kind="stable")[:size])
    weights = np.rint(q[top] * (255 / q[top].max())).astype(np.uint8)
    kept = weights > 0
    return CompactDistribution(tokens=top[kept].tolist(), weights=weights[kept].tobytes())


def dense(compact: CompactDistribution, vocab: int) -> Probabilities:
    """Probabilities that a compact distribution stands for, float64 [vocab].

    Raises `InvalidRequest` if it names one outside the vocabulary.
    """
    ids = np.asarray(compact.tokens)
    if ids.max() >= vocab:
        raise InvalidRequest(f"a draft distribution must name tokens below {vocab}")
    weights = np.frombuffer(compact.weights, np.uint8).astype(np.float64)
    q = np.zeros(vocab)
    q[ids] = weights / weights.sum()
    return q


# ------------------------------------------------------------------ typical


def typical(
    drafts: Tokens, p: Sequence[Probabilities], *, epsilon: float = 0.09, delta: float = 0.3
) -> Outcome:
    """Accept draft x while p(x) > min(ε, δ·exp(−H(p))); the first must be the greedy token.

    `p`: K + 1 rows [vocab]; H in nats. The next token is greedy. Lossy: what comes out is not
    distributed as p, nor is it the greedy text.
    """
    accepted = 0
    for draft, row in zip(drafts, p[:-1], strict=True):
        if accepted == 0:
            holds = draft == int(np.argmax(row))
        else:
            holds = row[draft] > min(epsilon, delta * np.exp(-entropy(row)))
        if not holds:
            break
        accepted += 1
    return Outcome(accepted, int(np.argmax(p[accepted])))


def entropy(p: Probabilities) -> float:
    """Shannon entropy in nats."""
    positive = p[p > 0]
    return float(-(positive * np.log(positive)).sum())
