"""Whole generations have the target's distribution, whoever drafts and however it is judged.

The model has one state, so that all tokens of a text are independent draws from one p. Everything
is seeded. Pearson's statistic over n cells is close to χ² with n − 1 degrees of freedom (expected
counts are above 5), which exceeds d + 2√(dx) + 2x with probability at most exp(−x) (Laurent and
Massart 2000); shares of N judged drafts are off by more than √(ln(2·10⁶) / 2N) with probability at
most 1e-6 (Hoeffding). So a test that fails by chance does so in less than 1e-6 of all seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from virtual_client import serving

from draftwire.acceptance import dense, quantize
from draftwire.adjust import Adjuster
from draftwire.sampling import distribution
from draftwire.testing.clock import run_virtual
from draftwire.testing.table import TableModel
from draftwire.types import SamplingParams, StopRules, Tokens, VerifyMode
from edge_client.controller import AdaptiveController
from edge_client.drafter import Proposal
from edge_client.drafters.table import TableDrafter
from edge_client.plan import Controller, FixedController, Plan, Round, View
from edge_client.request import Request

pytestmark = pytest.mark.slow

MODEL = TableModel(vocabulary_size=320, states=1, sharpness=2.0, seed=5)
PARAMS = SamplingParams(temperature=0.7, top_k=6, seed=11)
P = distribution(MODEL.logits(MODEL.initial), PARAMS)
TOKENS = 1500
X = math.log(1e6)
OTHERS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 1.5, "top_p": 0.8},
    {"temperature": 1.2, "min_p": 0.05},
    {"temperature": 1.6, "top_k": 40, "top_p": 0.9, "logit_bias": {7: 5.0, 8: 4.5, 9: -100.0}},
]

GOOD, POOR = MODEL.perturbed(0.1, seed=1), MODEL.perturbed(0.5, seed=2)
DRAFTERS = {
    "good": lambda: TableDrafter(GOOD, draft_time_s=0.001),
    "poor": lambda: TableDrafter(POOR, draft_time_s=0.001),
    "adversarial": lambda: TableDrafter(MODEL, draft_time_s=0.001, always_wrong=True),
}
CONTROLLERS = {
    "waiting": lambda: FixedController(Plan.waiting(4)),
    "pipelined": lambda: FixedController(Plan(window=8, chunk=2, credit=1, pipelined=True)),
    "run-on": lambda: FixedController(Plan(window=8, chunk=2, credit=4, pipelined=True)),
    "adaptive": AdaptiveController,
}


def generate(
    drafter: TableDrafter, controller: Controller, mode: VerifyMode, **sampling: Any
) -> tuple[list[int], Sequence[tuple[float, bool]]]:
    """The tokens of a text, and which of the judged drafts held."""

    async def run() -> tuple[list[int], Sequence[tuple[float, bool]]]:
        async with serving(MODEL) as (client, _):
            session = await client.session()
            session.drafter = drafter
            generation = session.generate(
                [3, 4],
                controller,
                Request(
                    sampling=SamplingParams(seed=11, **sampling) if sampling else PARAMS,
                    stop=StopRules(max_tokens=TOKENS),
                    mode=mode,
                ),
            )
            async for _ in generation.run():
                pass
            return session.tokens[2:], generation.outcomes

    return run_virtual(run())  # type: ignore[no-any-return]


def pearson(counts: np.ndarray, p: np.ndarray) -> float:
    expected = counts.sum() * p
    assert expected.min() >= 5
    return float(((counts - expected) ** 2 / expected).sum())


def limit(cells: int) -> float:
    d = cells - 1
    return d + 2 * math.sqrt(d * X) + 2 * X


def misfit(text: Tokens, p: np.ndarray = P) -> float:
    """Pearson's statistic of the tokens against p, over its limit; rare ones share a cell."""
    assert p[list(text)].all()
    likely = np.flatnonzero(p * len(text) >= 5)
    counts, shares = np.bincount(text, minlength=p.size)[likely], p[likely]
    if (rest := 1 - shares.sum()) * len(text) >= 5:
        counts, shares = np.append(counts, len(text) - counts.sum()), np.append(shares, rest)
    return pearson(counts, shares / shares.sum()) / limit(shares.size)


def dependence(text: Tokens, p: np.ndarray = P) -> float:
    """The same of pairs of neighbours, each being the likeliest token or not."""
    top = int(p.argmax())
    share = np.array([1 - p[top], p[top]])
    is_top = np.array([token == top for token in text])
    counts = np.zeros(4)
    np.add.at(counts, 2 * is_top[:-1:2] + is_top[1::2], 1)
    return pearson(counts, np.outer(share, share).ravel()) / limit(4)


GRID = [(drafter, controller) for drafter in DRAFTERS for controller in CONTROLLERS]


@pytest.mark.parametrize(
    ("drafter", "controller"),
    [
        pair if pair == ("poor", "adaptive") else pytest.param(*pair, marks=pytest.mark.slow)
        for pair in GRID
    ],
)
def test_rejection_gives_the_targets_distribution(drafter: str, controller: str) -> None:
    text, _ = generate(DRAFTERS[drafter](), CONTROLLERS[controller](), VerifyMode.REJECTION)
    assert len(text) == TOKENS
    assert misfit(text) < 1
    assert dependence(text) < 1


@pytest.mark.slow
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_match_gives_the_targets_distribution(drafter: str) -> None:
    text, _ = generate(DRAFTERS[drafter](), CONTROLLERS["pipelined"](), VerifyMode.MATCH)
    assert misfit(text) < 1
    assert dependence(text) < 1


@pytest.mark.slow
@pytest.mark.parametrize("sampling", OTHERS, ids=str)
@pytest.mark.parametrize("mode", [VerifyMode.MATCH, VerifyMode.REJECTION])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_so_it_is_with_every_parameter(
    drafter: str, mode: VerifyMode, sampling: dict[str, Any]
) -> None:
    """Penalties aside, under which tokens are not independent (they are held to p elsewhere)."""
    text, _ = generate(DRAFTERS[drafter](), CONTROLLERS["adaptive"](), mode, **sampling)
    params = SamplingParams(**sampling)
    bias = Adjuster.of(params, StopRules(), start=0, eos_token_ids=())
    p = distribution(
        MODEL.logits(MODEL.initial), params, None if bias is None else bias.adjustment()
    )
    assert misfit(text, p) < 1
    assert dependence(text, p) < 1


def test_typical_does_not() -> None:
    """Which is what lossy means; and the tests above can fail."""
    text, _ = generate(DRAFTERS["good"](), CONTROLLERS["waiting"](), VerifyMode.TYPICAL)
    assert misfit(text) > 1


@lru_cache
def overlap(model: TableModel, size: int = 16) -> float:
    """1 − TV of p and q̂."""
    q = distribution(model.logits(model.initial), PARAMS)
    return float(np.minimum(P, dense(quantize(q, size), P.size)).sum())


def off(judged: int) -> float:
    return math.sqrt(math.log(2e6) / (2 * judged))


@pytest.mark.parametrize(
    "model", [GOOD, pytest.param(POOR, marks=pytest.mark.slow)], ids=["good", "poor"]
)
def test_rejection_accepts_as_often_as_p_and_q_overlap(model: TableModel) -> None:
    drafter = TableDrafter(model, draft_time_s=0.001)
    _, outcomes = generate(drafter, CONTROLLERS["waiting"](), VerifyMode.REJECTION)
    held = np.mean([agreed for _, agreed in outcomes])
    assert abs(held - overlap(model)) < off(len(outcomes))


@pytest.mark.parametrize(
    "model", [GOOD, pytest.param(POOR, marks=pytest.mark.slow)], ids=["good", "poor"]
)
def test_shared_noise_accepts_nearly_as_often(model: TableModel) -> None:
    drafter = TableDrafter(model, draft_time_s=0.001)
    _, outcomes = generate(drafter, CONTROLLERS["waiting"](), VerifyMode.MATCH)
    held = np.mean([agreed for _, agreed in outcomes])
    best = overlap(model)
    assert held > best / (2 - best) - off(len(outcomes))  # (1 − TV) / (1 + TV)


# ------------------------------------------------------------------ when to send


class Picky:
    """Sends a draft if it is confident of it; else the cloud goes on, and the draft is dropped."""

    patience_s = 1.0

    def __init__(self, least: float) -> None:
        self._least = least

    def plan(self, view: View) -> Plan:
        if view.confidences and not view.sent and view.confidences[-1] < self._least:
            return Plan.cloud_alone(1)
        return Plan.waiting(1)

    def drafted(self, seconds: float, fed: int) -> None:
        pass

    def judged(self, outcome: Round) -> None:
        pass


class Telling(TableDrafter):
    """Says how likely the drawn token is, as a drafter must not in this mode."""

    async def draft(self, keep: int, tokens: Tokens) -> Proposal:
        proposal = await super().draft(keep, tokens)
        assert proposal.q is not None
        share = proposal.q.weight(proposal.token) / sum(proposal.q.weights)
        return Proposal(proposal.token, share, proposal.q)


@pytest.mark.slow
def test_whether_a_draft_is_sent_must_not_depend_on_what_was_drawn() -> None:
    """A confidence that tells it biases the output; one that is a function of q does not."""
    model = MODEL.perturbed(0.2, seed=4)
    exact, _ = generate(TableDrafter(model), Picky(0.3), VerifyMode.REJECTION)
    biased, _ = generate(Telling(model), Picky(0.3), VerifyMode.REJECTION)
    assert misfit(exact) < 1
    assert misfit(biased) > 1
