"""Torch judges as the numpy reference does, whatever the logits, parameters and drafts."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_verifier.judge_reference import judge_row
from cloud_verifier.target import Judgement, Row
from draftwire.adjust import Adjuster
from draftwire.grammar import GrammarCompiler
from draftwire.types import CompactDistribution, Grammar, SamplingParams, StopRules, VerifyMode

pytest.importorskip("llguidance")
pytestmark = pytest.mark.models

VOCAB = 40
tokens = st.integers(0, VOCAB - 1)
sampling = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.4, 1.0, 3.0, 100.0, 1e-3, 5e-324]),
    top_k=st.sampled_from([0, 0, 1, 3, 39, 60]),
    top_p=st.sampled_from([1.0, 1.0, 0.3, 0.9]),
    min_p=st.sampled_from([0.0, 0.0, 0.1]),
    seed=st.sampled_from([0, 2**64 - 1]) | st.integers(0, 2**64 - 1),
    repetition_penalty=st.sampled_from([1.0, 1.0, 0.7, 1.4, 0.01, 100.0]),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.6]),
    frequency_penalty=st.sampled_from([0.0, 0.0, -0.5, 0.3]),
    logit_bias=st.dictionaries(tokens, st.sampled_from([-100.0, 1.5]), max_size=3),
)
GRAMMARS = GrammarCompiler([chr(ord("A") + token).encode() for token in range(VOCAB)])
grammars = st.sampled_from(["[B-H]{2,6}", "(A|BC|[EFG]D)+Z", "[A-Z]*"])
stops = st.builds(StopRules, min_tokens=st.sampled_from([0, 0, 4, 30]))


@pytest.fixture(scope="module")
def judge() -> ModuleType:
    pytest.importorskip("torch")
    from cloud_verifier import judge

    return judge


@st.composite
def stated_for(draw: st.DrawFn, draft: int) -> CompactDistribution | None:
    """A distribution that the draft may come from; None stands for one-hot."""
    if draw(st.booleans()):
        return None
    ids = sorted({draft, *draw(st.lists(tokens, max_size=6))})
    weights = draw(st.lists(st.integers(1, 255), min_size=len(ids), max_size=len(ids)))
    return CompactDistribution(tokens=ids, weights=bytes(weights))


@st.composite
def rows(draw: st.DrawFn) -> tuple[Row, np.ndarray]:
    """A row with its logits, and drafts that hold for a while."""
    text = draw(st.lists(tokens, min_size=1, max_size=6))
    count = draw(st.integers(0, 5))
    dtype = draw(st.sampled_from([np.float32, np.float16]))
    noise = np.random.default_rng(draw(st.integers(0, 2**32)))
    scale = draw(st.sampled_from([0.2, 2.0, 20.0]))
    logits = noise.normal(scale=scale, size=(count + 1, VOCAB)).astype(dtype)
    if draw(st.booleans()):
        logits = logits.round()  # ties
    if draw(st.booleans()):
        logits[noise.random(logits.shape) < 0.5] = -np.inf  # as a model with masked tokens says
        logits[:, 5] = 0.0
    params, stop = draw(sampling), draw(stops)
    start, regex = draw(st.integers(0, len(text))), draw(st.none() | grammars)
    matcher = None
    if regex is not None:
        start = len(text)  # what is committed obeys the grammar
        matcher = GRAMMARS.compile(Grammar(kind="regex", text=regex))
    adjuster = Adjuster.of(params, stop, start=start, eos_token_ids=(3,), grammar=matcher)
    if adjuster is not None:
        adjuster.extend(text)

    mode = draw(st.sampled_from(VerifyMode))

    def row(drafts: list[int]) -> Row:
        stated = mode is VerifyMode.REJECTION and draw(st.booleans())
        return Row(
            tokens=[text[-1], *drafts],
            start=len(text) - 1,
            blocks=[],
            drafts=len(drafts),
            sampling=params,
            adjuster=adjuster,
            logprobs=draw(st.sampled_from([0, 1, 3])),
            mode=mode,
            q=[draw(stated_for(draft)) for draft in drafts] if stated else (),
        )

    drafts: list[int] = []
    for _ in range(draw(st.integers(0, count))):
        drafts.append(judge_row(row(drafts), logits[: len(drafts) + 1]).token)
    drafts += draw(st.lists(tokens, min_size=count - len(drafts), max_size=count - len(drafts)))
    return row(drafts), logits


def assert_same(got: Judgement, expected: Judgement) -> None:
    assert (got.accepted, got.token) == (expected.accepted, expected.token)
    assert len(got.logprobs) == len(expected.logprobs)
    for ours, theirs in zip(got.logprobs, expected.logprobs, strict=True):
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
        assert list(ours.top_tokens) == list(theirs.top_tokens)
        assert ours.top_logprobs == pytest.approx(theirs.top_logprobs, abs=1e-4)


@settings(max_examples=150)
@given(st.lists(rows(), min_size=1, max_size=8))
def test_a_ragged_batch_is_judged_row_by_row_as_the_reference_does(
    judge: ModuleType, batch: list[tuple[Row, np.ndarray]]
) -> None:
    import torch

    prompt = Row(tokens=[1, 2], start=0, blocks=[], judge=False)
    half = all(logits.dtype == np.float16 for _, logits in batch)
    packed: Any = torch.from_numpy(
        np.concatenate([logits.astype(np.float16 if half else np.float32) for _, logits in batch])
    )
    got = judge.judge([prompt, *(row for row, _ in batch)], packed)
    assert got[0] is None
    for judgement, (row, logits) in zip(got[1:], batch, strict=True):
        assert_same(judgement, judge_row(row, logits))
