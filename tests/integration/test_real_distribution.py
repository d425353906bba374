"""The first token of a real model's text has the target's distribution, whoever drafts it.

ROUNDS rounds of one draft are judged at one position, with seeds 0, 1, 2 and so on, by the torch
code that serves. Pearson's statistic over n cells, each with at least 5 expected, is close to χ²
with n − 1 degrees of freedom, which exceeds d + 2√(dx) + 2x with probability at most exp(−x)
(Laurent and Massart 2000); shares of ROUNDS drafts are off by more than √(ln(2·10⁶) / 2·ROUNDS)
with probability at most 1e-6 (Hoeffding). So a test that fails by chance does so in less than 1e-6
of all choices of seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("llama_cpp")

from cloud_verifier.hf_target import HFTarget  # noqa: E402
from cloud_verifier.judge import judge  # noqa: E402
from cloud_verifier.target import Row  # noqa: E402
from draftwire.acceptance import dense  # noqa: E402
from draftwire.adjust import Adjuster  # noqa: E402
from draftwire.sampling import distribution  # noqa: E402
from draftwire.testing.demo import demo_model_path  # noqa: E402
from draftwire.types import SamplingParams, StopRules, VerifyMode  # noqa: E402
from edge_client.drafter import Proposal  # noqa: E402
from edge_client.drafters.llama_context import LlamaContext  # noqa: E402
from edge_client.drafters.llama_model import LlamaModel  # noqa: E402
from edge_client.drafters.propose import Proposer  # noqa: E402

pytestmark = [pytest.mark.models, pytest.mark.slow]

ROUNDS, AT_ONCE = 1000, 40
X = math.log(1e6)
OFF = math.sqrt(math.log(2e6) / (2 * ROUNDS))

Logits = np.ndarray
CASES = {
    "plain": ("Once upon a time, in a village at the foot of a mountain,", SamplingParams()),
    "truncated": ("The", SamplingParams(temperature=0.8, top_k=50, top_p=0.95)),
    "penalised": (
        "one two one two one two one",
        SamplingParams(
            temperature=1.2,
            min_p=0.02,
            repetition_penalty=1.4,
            presence_penalty=0.5,
            logit_bias={30: 2.0, 28: -100.0},
        ),
    ),
}


@dataclass(frozen=True)
class Position:
    """A place in a text as both models see it."""

    text: list[int]
    target: Logits
    draft: Logits
    sampling: SamplingParams

    @property
    def adjuster(self) -> Adjuster | None:
        adjuster = Adjuster.of(self.sampling, StopRules(), start=1, eos_token_ids=())
        if adjuster is not None:
            adjuster.extend(self.text)
        return adjuster

    @property
    def p(self) -> np.ndarray:
        adjuster = self.adjuster
        return distribution(
            self.target, self.sampling, None if adjuster is None else adjuster.adjustment()
        )


@pytest.fixture(scope="module")
def positions() -> dict[str, Position]:
    target = HFTarget.load(str(demo_model_path()), kv_tokens=256, device="cpu", threads=1)
    model = LlamaModel.load(demo_model_path())
    out = {}
    for name, (text, sampling) in CASES.items():
        tokens = model.tokenizer.encode(text)
        row = Row(tokens=tokens, start=0, blocks=range(target.num_blocks))
        context = LlamaContext(model, threads=1, size=128, batch=32)
        context.tokens.extend(tokens)
        out[name] = Position(
            tokens,
            target.logits([row])[-1].float().numpy().copy(),
            context.logits().copy(),
            sampling if sampling.temperature else replace(sampling, temperature=1.0),
        )
        context.close()
    target.close()
    model.close()
    return out


def good(at: Position, seed: int, mode: VerifyMode) -> Proposal:
    """What the draft model proposes, by the code that drafts on a device."""
    adjuster = at.adjuster
    change = None if adjuster is None else adjuster.adjustment()
    sampling = replace(at.sampling, seed=seed)
    return Proposer(at.draft.size).propose(at.draft, len(at.text), sampling, change, mode)


def poor(at: Position, seed: int, mode: VerifyMode) -> Proposal:
    """What a draft model says that knows next to nothing of the text."""
    spoilt = np.random.default_rng(5).standard_normal(at.draft.size, dtype=np.float32)
    return good(replace(at, draft=0.3 * at.draft + 2 * spoilt), seed, mode)


def adversarial(at: Position, seed: int, mode: VerifyMode) -> Proposal:  # noqa: ARG001
    """Always the same likely token, without saying so."""
    return Proposal(int(np.argpartition(at.target, -2)[-2]), 1.0)


Drafting = Callable[[Position, int, VerifyMode], Proposal]


def judged(
    at: Position, drafting: Drafting, mode: VerifyMode
) -> tuple[list[int], float, list[Proposal]]:
    """The first token of each round, how often the draft held, and the drafts."""
    drafts = [drafting(at, seed, mode) for seed in range(ROUNDS)]
    tokens, held = [], 0
    logits, adjuster = torch.from_numpy(at.target), at.adjuster
    for start in range(0, ROUNDS, AT_ONCE):
        block = drafts[start : start + AT_ONCE]
        rows = [
            Row(
                tokens=[at.text[-1], draft.token],
                start=len(at.text) - 1,
                blocks=(),
                drafts=1,
                sampling=replace(at.sampling, seed=seed),
                adjuster=adjuster,
                mode=mode,
                q=() if draft.q is None else (draft.q,),
            )
            for seed, draft in enumerate(block, start=start)
        ]
        for draft, judgement in zip(
            block, judge(rows, logits.repeat(2 * len(block), 1)), strict=True
        ):
            assert judgement is not None
            held += judgement.accepted
            tokens.append(draft.token if judgement.accepted else judgement.token)
    return tokens, held / ROUNDS, drafts


def misfit(tokens: list[int], p: np.ndarray) -> float:
    """Pearson's statistic in units of its limit; rare tokens share a cell."""
    counts = np.bincount(tokens, minlength=p.size)
    assert not counts[p == 0].any()
    order = np.argsort(-p)
    single = order[p[order] * ROUNDS >= 5]
    expected = np.append(p[single], 1 - p[single].sum()) * ROUNDS
    seen = np.append(counts[single], ROUNDS - counts[single].sum())
    if expected[-1] < 5:  # what is left joins the least likely of the others
        expected = np.append(expected[:-2], expected[-2:].sum())
        seen = np.append(seen[:-2], seen[-2:].sum())
    d = expected.size - 1
    assert d >= 5
    return float(((seen - expected) ** 2 / expected).sum()) / (d + 2 * math.sqrt(d * X) + 2 * X)


@pytest.mark.parametrize("drafting", [good, poor, adversarial])
@pytest.mark.parametrize("case", CASES)
def test_rejection_gives_the_targets_distribution_and_holds_as_often_as_p_and_q_overlap(
    positions: dict[str, Position], case: str, drafting: Drafting
) -> None:
    at = positions[case]
    tokens, held, drafts = judged(at, drafting, VerifyMode.REJECTION)
    assert misfit(tokens, at.p) < 1
    q = drafts[0].q
    overlap = at.p[drafts[0].token] if q is None else np.minimum(at.p, dense(q, at.p.size)).sum()
    assert abs(held - overlap) < OFF


@pytest.mark.parametrize("drafting", [good, poor, adversarial])
@pytest.mark.parametrize("case", CASES)
def test_match_gives_the_targets_distribution_and_shared_noise_holds_nearly_as_often(
    positions: dict[str, Position], case: str, drafting: Drafting
) -> None:
    at = positions[case]
    tokens, held, _ = judged(at, drafting, VerifyMode.MATCH)
    assert misfit(tokens, at.p) < 1
    if drafting is good:  # whose q is the draft model's whole distribution
        adjuster = at.adjuster
        q = distribution(at.draft, at.sampling, None if adjuster is None else adjuster.adjustment())
        best = float(np.minimum(at.p, q).sum())
        assert held > best / (2 - best) - OFF  # (1 − TV) / (1 + TV)


def test_a_draft_that_is_always_believed_is_seen(positions: dict[str, Position]) -> None:
    """The tests above can fail."""
    at = positions["truncated"]
    p = at.p
    drafts = [poor(at, seed, VerifyMode.REJECTION).token for seed in range(ROUNDS)]
    assert misfit([draft if p[draft] else int(p.argmax()) for draft in drafts], p) > 1
