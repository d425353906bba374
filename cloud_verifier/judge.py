"""From the logits of a pass to a judgement of each row, in torch.

All rows are handled together where that saves time; what comes out of each is what
`cloud_verifier.judge_reference` says of it alone, whatever its neighbours are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from cloud_verifier.distributions import Distribution, distributions, shares
from cloud_verifier.target import Judgement, Row
from cloud_verifier.verify import choose, selected
from draftwire.acceptance import Outcome, match, typical
from draftwire.adjust import LEAST, Adjustment
from draftwire.noise import Purpose, uniform
from draftwire.sampling import distribution
from draftwire.types import TokenLogprobs, VerifyMode


def judge(rows: Sequence[Row], logits: torch.Tensor) -> list[Judgement | None]:
    """A judgement for each row, None where `judge` is false.

    `logits` [N, vocab], N counting `drafts + 1` for each judged row, in order. They are ours to
    change. Raises `InternalError` if a row has no finite greatest logit.
    """
    judged = [row for row in rows if row.judge]
    adjustments = [change for row in judged for change in row.adjustments]
    raw = logits
    if any(row.logprobs for row in judged) and any(adjustments):
        logits = logits.clone()
    logits = adjust(logits, adjustments)
    outcomes = _outcomes(judged, logits)
    logprobs = _logprobs(judged, outcomes, raw)
    answers = iter(
        Judgement(outcome.accepted, outcome.token, told)
        for outcome, told in zip(outcomes, logprobs, strict=True)
    )
    return [next(answers) if row.judge else None for row in rows]


def adjust(logits: torch.Tensor, adjustments: Sequence[Adjustment | None]) -> torch.Tensor:
    """Change rows of `logits` [rows, vocab], in place where they are float32; returns them."""
    changed = [(at, change) for at, change in enumerate(adjustments) if change is not None]
    if not changed:
        return logits
    logits = logits.float()
    device = logits.device
    # Operation by operation as `Adjustment.apply`, so that every bit is the same.
    for at, change in changed:
        if change.mask is not None:
            allowed = torch.from_numpy(change.mask).to(device)
            logits[at].clamp_(min=float(LEAST)).masked_fill_(~allowed, -torch.inf)
    rows = np.repeat([at for at, _ in changed], [len(change.ids) for _, change in changed])
    if rows.size:
        parts = zip(*(change[:3] for _, change in changed), strict=True)
        ids, penalty, offset = (torch.from_numpy(np.concatenate(part)).to(device) for part in parts)
        index = torch.from_numpy(rows).to(device), ids
        picked = logits[index]
        logits[index] = torch.where(picked > 0, picked / penalty, picked * penalty) + offset
    return logits


def _outcomes(rows: Sequence[Row], logits: torch.Tensor) -> list[Outcome]:
    """Each row by the rule of its mode. `logits` [N, vocab] are adjusted."""
    rules = {VerifyMode.MATCH: _match, VerifyMode.REJECTION: _rejection}
    if all(row.mode is VerifyMode.MATCH for row in rows):
        return _match(rows, logits)
    places: dict[VerifyMode, list[int]] = {}
    spans: list[range] = []
    for at, row in enumerate(rows):
        places.setdefault(row.mode, []).append(at)
        start = spans[-1].stop if spans else 0
        spans.append(range(start, start + row.drafts + 1))
    out: dict[int, Outcome] = {}
    for mode, ours in places.items():
        index = [line for at in ours for line in spans[at]]
        rule = rules.get(mode, _typical)
        out |= zip(ours, rule([rows[at] for at in ours], logits[index]), strict=True)
    return [out[at] for at in range(len(rows))]


def _rejection(rows: Sequence[Row], logits: torch.Tensor) -> list[Outcome]:
    """`draftwire.acceptance.rejection` of each row."""
    p = iter(distributions(logits, [row.sampling for row in rows for _ in row.positions]))
    return [_reject(row, [next(p) for _ in row.positions]) for row in rows]


def _reject(row: Row, p: Sequence[Distribution]) -> Outcome:
    seed = row.sampling.seed
    for place, (draft, stated) in enumerate(zip(row.drafted, row.stated, strict=True)):
        position = row.positions[place]
        tokens, q = shares(draft, stated)
        chance = float(q[tokens == draft].sum())
        if uniform(seed, position, Purpose.ACCEPT) * chance < p[place].probability(draft):
            continue
        token = p[place].recover(draft, stated, uniform(seed, position, Purpose.RECOVER))
        if token != draft:
            return Outcome(place, token)
    return Outcome(row.drafts, p[-1].draw(uniform(seed, row.end, Purpose.BONUS)))


def _typical(rows: Sequence[Row], logits: torch.Tensor) -> list[Outcome]:
    """By the reference itself: the mode is lossy and rarely asked for."""
    dense = iter(logits.float().cpu().numpy())
    return [
        typical(row.drafted, [distribution(next(dense), row.sampling) for _ in row.positions])
        for row in rows
    ]


def _match(rows: Sequence[Row], logits: torch.Tensor) -> list[Outcome]:
    positions = [position for row in rows for position in row.positions]
    sampling = [row.sampling for row in rows for _ in row.positions]
    chosen = iter(choose(logits, positions, sampling))
    return [match(row.drafted, [next(chosen) for _ in row.positions]) for row in rows]


def _logprobs(
    rows: Sequence[Row], outcomes: Sequence[Outcome], logits: torch.Tensor
) -> list[tuple[TokenLogprobs, ...]]:
    """For each row those of what it commits, where asked for. `logits` [N, vocab] are raw."""
    index: list[int] = []
    tokens: list[int] = []
    at = 0
    for row, outcome in zip(rows, outcomes, strict=True):
        if row.logprobs:
            index.extend(range(at, at + outcome.accepted + 1))
            tokens.extend((*row.drafted[: outcome.accepted], outcome.token))
        at += row.drafts + 1
    if not index:
        return [() for _ in rows]
    most = max(row.logprobs for row in rows) - 1
    told = _log_softmax(logits[index], tokens, most)
    out: list[tuple[TokenLogprobs, ...]] = []
    for row, outcome in zip(rows, outcomes, strict=True):
        count = outcome.accepted + 1 if row.logprobs else 0
        own, told = told[:count], told[count:]
        tops = row.logprobs - 1
        out.append(
            tuple(
                TokenLogprobs(logprob=p, top_tokens=ids[:tops], top_logprobs=values[:tops])
                for p, ids, values in own
            )
        )
    return out


def _log_softmax(
    logits: torch.Tensor, tokens: Sequence[int], most: int
) -> list[tuple[float, list[int], list[float]]]:
    """Of each row of `logits` [rows, vocab]: of its token, and of the `most` likeliest ids."""
    x = logits.float()
    x = x - x.logsumexp(dim=-1, keepdim=True)
    own = x.gather(1, torch.tensor(tokens, device=x.device)[:, None])[:, 0].tolist()
    most = min(most, x.shape[1])
    if most < 1:
        return [(p, [], []) for p in own]
    lowest = x.topk(most, dim=-1).values[:, -1:]
    where, ids, rows = selected(x >= lowest)
    values = x.flatten()[where].cpu().numpy()
    told = []
    for p, row in zip(own, rows, strict=True):
        best = np.argsort(-values[row], kind="stable")[:most]  # of equals the lower id first
        told.append((p, ids[row][best].tolist(), values[row][best].tolist()))
    return told
