"""Match mode in torch: the target's own token for every row of a pass.

Rows of all sessions are handled together. The token is argmax of log p + Gumbel noise, exactly as
`draftwire.acceptance.match_token` defines it. What is saved is arithmetic on tokens that can't win:

- Greedy rows cost an argmax.
- Rows with truncation need noise on the tokens that are kept only.
- For the others integers are hashed for the whole vocabulary, but logarithms taken for survivors
  only. Let B be the score of the most likely token. Token i beats it only if its noise exceeds
  B − l; since −log u ≥ 1 − u, that requires 1 − u < exp(l − B). The test is made in float32
  with room for its rounding, so it may let losers through but never drops a winner, and B's own
token always passes.

Final scores are computed by numpy on the CPU from the few survivors: one implementation of the
logarithm decides on every device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from draftwire import noise
from draftwire.errors import InternalError
from draftwire.sampling import divisor, truncate, truncates
from draftwire.types import SamplingParams

# Rows hashed at a time. It bounds memory; on a CPU they stay within its cache, and on a GPU every
# block waits for the device.
_BLOCK, _BLOCK_ON_DEVICE = 32, 128
_MOST_RANKED = 1024  # a greater top-k is ranked by numpy
# Room for float32's rounding in the test for survivors, ten times what it can amount to.
_RELATIVE_ROOM = 1 + 1e-4
_ABSOLUTE_ROOM = 2048.0  # in units of 2⁻³²


def choose(
    logits: torch.Tensor, positions: Sequence[int], sampling: Sequence[SamplingParams]
) -> list[int]:
    """The target's token for each row in `match` mode.

    `logits` [rows, vocab], any floating dtype, row i predicting position `positions[i]` under
    `sampling[i]`. Raises `InternalError` if a row has no finite greatest logit.
    """
    if not len(logits) == len(positions) == len(sampling):
        raise InternalError(
            f"{len(logits)} rows, {len(positions)} positions, {len(sampling)} params"
        )
    if not positions:
        return []
    if logits.dtype == torch.float64:
        logits = logits.float()
    best, chosen = finite_best(logits)
    at_once = rows_at_once(logits.device)
    sampled = [i for i, params in enumerate(sampling) if not params.greedy]
    for rows, pick in (
        ([i for i in sampled if truncates(sampling[i])], _pick_truncated),
        ([i for i in sampled if not truncates(sampling[i])], _pick),
    ):
        for start in range(0, len(rows), at_once):
            block = rows[start : start + at_once]
            params = [sampling[i] for i in block]
            x = scaled(logits, best, block, params)
            tokens = pick(x, [chosen[i] for i in block], [positions[i] for i in block], params)
            for i, token in zip(block, tokens, strict=True):
                chosen[i] = token
    return chosen


def rows_at_once(device: torch.device) -> int:
    """Rows to handle at a time."""
    return _BLOCK if device.type == "cpu" else _BLOCK_ON_DEVICE


def finite_best(logits: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """The greatest logit of each row and its id, the first of equals.

    Raises `InternalError` if one is not finite.
    """
    if logits.device.type == "cpu" and logits.dtype is torch.float32:
        # NumPy is an order of magnitude faster at this than torch is; a NaN is greatest in both.
        first = torch.from_numpy(logits.numpy().argmax(axis=-1))
        best = logits.gather(1, first[:, None])[:, 0]
    else:
        best, first = logits.max(dim=-1)
    finite, *ids = torch.cat([torch.isfinite(best).all()[None], first]).tolist()  # one wait
    if not finite:
        raise InternalError("a row of logits has no finite maximum")
    return best, ids


def scaled(
    logits: torch.Tensor, best: torch.Tensor, rows: list[int], sampling: list[SamplingParams]
) -> torch.Tensor:
    """Log weights of the given rows, float32 [rows, vocab] (`draftwire.sampling.scale`)."""
    everything = len(rows) == len(logits)
    index = torch.tensor(rows, device=logits.device)
    x = logits.float() if everything else logits[index].float()
    x = x - best[index].float()[:, None]
    # A tensor, not a number: CUDA divides by a number through its reciprocal, which rounds twice.
    divisors = np.array([[divisor(s.temperature)] for s in sampling])
    return x.div_(torch.from_numpy(divisors).to(x.device))


def _hash(
    keys: list[tuple[int, int]], vocab: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """`noise.bits` for a row per key pair, as int32 [rows, vocab] with the same 32 bits.

    The second tensor is scratch of that shape: touching fresh memory costs more than arithmetic.
    """
    first, second = torch.tensor(np.array(keys, dtype=np.uint32).view(np.int32), device=device).T
    x = torch.arange(vocab, dtype=torch.int32, device=device) ^ first[:, None]
    scratch = torch.empty_like(x)
    _finalize(x, scratch)
    x ^= second[:, None]
    _finalize(x, scratch)
    return x, scratch


def _finalize(x: torch.Tensor, scratch: torch.Tensor) -> None:
    """One finalizer round of `draftwire.noise` on int32, in place."""
    for shift, factor in noise.ROUND:
        torch.bitwise_right_shift(x, shift, out=scratch)
        scratch &= (1 << (32 - shift)) - 1  # the shift is arithmetic
        x ^= scratch
        if factor != 1:
            x *= factor - (1 << 32) if factor >= 1 << 31 else factor


def gumbel(
    seed: int, positions: Sequence[int], vocab: int, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """`draftwire.noise.gumbel` computed by torch throughout, float32 [positions, vocab]."""
    keys = [noise.round_keys(seed, p) for p in positions]
    hashed, _ = _hash(keys, vocab, torch.device(device))
    unsigned = hashed.double() % 2.0**32
    return (-torch.log(-torch.log((unsigned + 0.5) * 2.0**-32))).float()


def _pick(
    x: torch.Tensor, first: list[int], positions: list[int], sampling: list[SamplingParams]
) -> list[int]:
    """Tokens of untruncated rows: hash everything, score survivors. `x` [rows, vocab]."""
    keys = [noise.round_keys(s.seed, p) for s, p in zip(sampling, positions, strict=True)]
    hashed, scratch = _hash(keys, x.shape[1], x.device)
    leaders = torch.arange(len(first)), torch.tensor(first, device=x.device)
    bound = torch.from_numpy(noise.from_bits(_unsigned(hashed[leaders])))  # their log weight is 0
    # 1 − u < exp(x − B), times 2³² and shifted so that hashes compare as signed numbers
    threshold = x - bound.to(x.device)[:, None]
    threshold.exp_().mul_(-_RELATIVE_ROOM * 2.0**32).add_(2.0**31 - _ABSOLUTE_ROOM)
    hashed ^= -(2**31)
    where, ids, rows = selected(scratch.view(torch.float32).copy_(hashed) > threshold)
    surviving = x.flatten()[where].cpu().numpy()
    noisy = noise.from_bits(_unsigned(hashed.flatten()[where] ^ -(2**31)))
    return [_winner(ids[row], surviving[row], noisy[row]) for row in rows]


def _pick_truncated(
    x: torch.Tensor, _first: list[int], positions: list[int], sampling: list[SamplingParams]
) -> list[int]:
    """Tokens of truncated rows: noise on what is kept. `x` [rows, vocab]."""
    chosen = []
    for (ids, kept), position, params in zip(
        kept_tokens(x, sampling), positions, sampling, strict=True
    ):
        noisy = noise.gumbel_at(params.seed, position, ids)
        chosen.append(_winner(ids, kept, noisy))
    return chosen


def kept_tokens(
    x: torch.Tensor, sampling: list[SamplingParams]
) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Ids, rising, and log weights of what truncation keeps of each row. `x` [rows, vocab]."""
    totals = [1.0] * len(x)
    if nucleus := [i for i, s in enumerate(sampling) if s.top_p < 1 and not s.top_k]:
        masses = torch.stack([x[i].double().exp_().sum() for i in nucleus]).tolist()
        for i, mass in zip(nucleus, masses, strict=True):
            totals[i] = mass
    where, ids, rows = selected(x >= _lowest_kept(x, totals, sampling))
    candidates = x.flatten()[where].cpu().numpy()
    out = []
    for row, total, params in zip(rows, totals, sampling, strict=True):
        kept = truncate(candidates[row], params, total)
        left = np.flatnonzero(kept > -np.inf)
        out.append((ids[row][left], kept[left]))
    return out


def _lowest_kept(
    x: torch.Tensor, totals: list[float], sampling: list[SamplingParams]
) -> torch.Tensor:
    """A log weight per row below which truncation keeps nothing, float32 [rows, 1].

    Top-k: the k-th greatest. Top-p: all below c weigh less than vocab · exp(c) together, so c may
    be where that is (1 − p) · total. Min-p: its logarithm.
    """
    vocab = x.shape[1]
    lowest = torch.full((len(x), 1), -torch.inf)
    for i, params in enumerate(sampling):
        if params.top_k == 0:
            share = max((1 - params.top_p) * totals[i] / vocab, params.min_p)
            lowest[i] = math.log(share) - 1e-3  # rounding
    lowest = lowest.to(x.device)
    few = [i for i, s in enumerate(sampling) if 0 < s.top_k <= min(_MOST_RANKED, vocab)]
    if few:
        ranks = [[sampling[i].top_k - 1] for i in few]
        greatest = x[few].topk(max(ranks)[0] + 1, dim=-1).values
        lowest[few] = greatest.gather(1, torch.tensor(ranks, device=x.device))
    return lowest


def _unsigned(hashed: torch.Tensor) -> noise.Bits:
    return hashed.cpu().numpy().view(np.uint32)


def selected(mask: torch.Tensor) -> tuple[torch.Tensor, NDArray[np.int64], list[slice]]:
    """True places of a mask [rows, vocab]: flat indices, rising, their token ids, rows' slices.

    Reads eight flags at a time: `nonzero` on booleans costs five times as much.
    """
    flat = torch.nn.functional.pad(mask.flatten(), (0, -mask.numel() % 8))
    words = flat.view(torch.int64).nonzero()
    where = (words * 8 + torch.arange(8, device=mask.device)).flatten()
    where = where[flat[where]]
    rows, ids = np.divmod(where.cpu().numpy(), mask.shape[1])
    edges = np.searchsorted(rows, np.arange(len(mask) + 1)).tolist()
    return where, ids, [slice(a, b) for a, b in pairwise(edges)]


def _winner(ids: NDArray[np.int64], scaled: NDArray[np.float32], noisy: NDArray[np.float32]) -> int:
    """Id with the greatest score, the lowest of equals. Sums are float64: float32 ones tie."""
    return int(ids[np.argmax(scaled.astype(np.float64) + noisy)])  # ids rise
