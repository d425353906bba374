"""Match mode in torch: the target's own token for every row of a pass.

Rows of all sessions are handled together. The token is argmax of log p + Gumbel noise, exactly as
`draftwire.acceptance.match_token` defines it. What is saved is arithmetic on tokens that can't win:

- Greedy rows cost an argmax.
- Rows with truncation need noise on the tokens that are kept only.
- For the others integers are hashed for the whole vocabulary, but logarithms taken for survivors
  only. Let B be the score of the most likely token. Token i beats it only if its noise exceeds
  B − l; since −log u ≥ 1 − u, that requires 1 − u < exp(l − B). The test is made in float32
  with room for its rounding, so it may let losers through but never drops a winner.

Final scores are computed by numpy on the CPU from the few survivors: one implementation of the
logarithm decides on every device.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from draftwire import noise
from draftwire.errors import InternalError
from draftwire.sampling import divisor, truncates, weights
from draftwire.types import SamplingParams

_BLOCK = 32  # rows hashed at a time: bounds memory, and stays within a CPU's cache
_CANDIDATES = 256  # most nuclei fit; the rest look at eight times as many, and so on
_ROOM = (
    1 + 1e-4,
    2048.0,
)  # relative and absolute, in units of 2⁻³²: float32 error is below a tenth


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
    best, first = logits.max(dim=-1)  # the first of equals
    if not bool(torch.isfinite(best).all()):
        raise InternalError("a row of logits has no finite maximum")
    chosen: list[int] = first.tolist()
    sampled = [i for i, params in enumerate(sampling) if not params.greedy]
    for rows, pick in (
        ([i for i in sampled if truncates(sampling[i])], _pick_truncated),
        ([i for i in sampled if not truncates(sampling[i])], _pick),
    ):
        for start in range(0, len(rows), _BLOCK):
            block = rows[start : start + _BLOCK]
            params = [sampling[i] for i in block]
            x = _scaled(logits, best, block, params)
            tokens = pick(x, [chosen[i] for i in block], [positions[i] for i in block], params)
            for i, token in zip(block, tokens, strict=True):
                chosen[i] = token
    return chosen


def _scaled(
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


def _hash(keys: list[tuple[int, int]], vocab: int, device: torch.device) -> torch.Tensor:
    """`noise.bits` for a row per key pair, as int32 [rows, vocab] with the same 32 bits."""
    signed = torch.tensor(np.array(keys, dtype=np.uint32).view(np.int32), device=device)
    x = torch.arange(vocab, dtype=torch.int32, device=device).repeat(len(keys), 1)
    shifted = torch.empty_like(x)
    for r in range(2):
        x ^= signed[:, r, None]
        for shift, factor in noise.ROUND:
            torch.bitwise_right_shift(x, shift, out=shifted)
            shifted &= (1 << (32 - shift)) - 1  # the shift is arithmetic
            x ^= shifted
            if factor != 1:
                x *= factor - (1 << 32) if factor >= 1 << 31 else factor
    return x


def gumbel(
    seed: int, positions: Sequence[int], vocab: int, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """`draftwire.noise.gumbel` computed by torch throughout, float32 [positions, vocab]."""
    keys = [noise.round_keys(seed, p) for p in positions]
    unsigned = _hash(keys, vocab, torch.device(device)).double() % 2.0**32
    return (-torch.log(-torch.log((unsigned + 0.5) * 2.0**-32))).float()


def _pick(
    x: torch.Tensor, first: list[int], positions: list[int], sampling: list[SamplingParams]
) -> list[int]:
    """Tokens of untruncated rows: hash everything, score survivors. `x` [rows, vocab]."""
    keys = [noise.round_keys(s.seed, p) for s, p in zip(sampling, positions, strict=True)]
    hashed = _hash(keys, x.shape[1], x.device)
    bound = [
        float(noise.gumbel_at(s.seed, p, [token])[0])  # log weight of the most likely token is 0
        for s, p, token in zip(sampling, positions, first, strict=True)
    ]
    relative, absolute = _ROOM
    # 1 − u < exp(x − B), times 2³² and shifted so that hashes compare as signed numbers
    threshold = x - torch.tensor(bound, dtype=torch.float32, device=x.device)[:, None]
    threshold.exp_().mul_(-relative * 2.0**32).add_(2.0**31 - absolute)
    survives = (hashed ^ -(2**31)).float() > threshold
    survives[torch.arange(len(first)), torch.tensor(first, device=x.device)] = True
    where = _true_indices(survives.flatten())
    scaled = x.flatten()[where].cpu().numpy()
    noisy = noise.from_bits(hashed.flatten()[where].cpu().numpy().view(np.uint32))
    rows, ids = np.divmod(where.cpu().numpy(), x.shape[1])
    edges = np.searchsorted(rows, np.arange(len(first) + 1))
    return [_winner(ids[a:b], scaled[a:b], noisy[a:b]) for a, b in pairwise(edges)]


def _true_indices(mask: torch.Tensor) -> torch.Tensor:
    """Indices of the few true ones in a flat mask, rising.

    Reads eight flags at a time: `nonzero` on booleans costs five times as much.
    """
    padded = torch.nn.functional.pad(mask, (0, -len(mask) % 8))
    words = padded.view(torch.int64).nonzero()
    where = (words * 8 + torch.arange(8, device=mask.device)).flatten()
    return where[padded[where]]


def _winner(ids: NDArray[np.int64], scaled: NDArray[np.float32], noisy: NDArray[np.float32]) -> int:
    """Id with the greatest score, the lowest of equals. Sums are float64: float32 ones tie."""
    score = scaled.astype(np.float64) + noisy
    return int(ids[score == score.max()].min())


def _pick_truncated(
    x: torch.Tensor, first: list[int], positions: list[int], sampling: list[SamplingParams]
) -> list[int]:
    """Tokens of truncated rows: noise on what is kept. `x` [rows, vocab]."""
    del first
    vocab = x.shape[1]
    mass = x.double().exp_().sum(dim=-1).tolist()
    chosen = [0] * len(x)
    pending = list(range(len(x)))
    most = _CANDIDATES
    while pending:
        most = min(max([most, *(sampling[i].top_k for i in pending)]), vocab)
        top = x[pending].topk(most, dim=-1)  # sorted; the order of equals is not defined
        values, indices = top.values.cpu().numpy(), top.indices.cpu().numpy()
        undecided = []
        for i, value, index in zip(pending, values, indices, strict=True):
            count = _kept(value, mass[i], vocab, sampling[i])
            if count is None:
                undecided.append(i)
                continue
            ids, scaled = index[:count], value[:count]
            if count < vocab and (count == most or value[count] == value[count - 1]):
                ids = _ids_with_ties(x[i], float(value[count - 1]), count)
                scaled = x[i][torch.from_numpy(ids).to(x.device)].cpu().numpy()
            noisy = noise.gumbel_at(sampling[i].seed, positions[i], ids)
            chosen[i] = _winner(ids, scaled, noisy)
        pending, most = undecided, most * 8
    return chosen


def _kept(
    values: NDArray[np.float32], mass: float, vocab: int, sampling: SamplingParams
) -> int | None:
    """How many ranks the truncation of `draftwire.sampling` keeps; None if more than are given.

    `values`: the greatest log weights, falling; `mass`: sum of all weights of the row.
    """
    count = vocab
    w = weights(values)
    if 0 < sampling.top_k < vocab:
        count = sampling.top_k
        w = w[:count]
        mass = float(np.cumsum(w)[-1])
    if sampling.top_p < 1:
        count = min(count, int(np.searchsorted(np.cumsum(w), sampling.top_p * mass)) + 1)
    if sampling.min_p > 0:
        count = min(count, int(np.count_nonzero(w >= sampling.min_p)))
    beyond = count > len(values) or (sampling.min_p > 0 and count == len(values) < vocab)
    return None if beyond else count


def _ids_with_ties(x: torch.Tensor, lowest: float, count: int) -> NDArray[np.int64]:
    """Ids of the `count` greatest of x [vocab], the lowest ids among those equal to `lowest`."""
    above = (x > lowest).nonzero()[:, 0]
    equal = (x == lowest).nonzero()[: count - len(above), 0]
    ids: NDArray[np.int64] = torch.cat([above, equal]).cpu().numpy()
    return ids
