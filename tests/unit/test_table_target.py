"""The table target: right over sound KV, and no fault of block bookkeeping passes unseen."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from cloud_verifier.table_target import TableTarget
from cloud_verifier.target import Judgement, Row, TargetModel
from draftwire.errors import InternalError
from draftwire.testing.table import EOS, TableModel, TableTokenizer
from draftwire.types import SamplingParams, ServingLimits
from edge_client.drafters.table import TableDrafter

MODEL = TableModel(seed=1)
PROMPT = [5, 6, 7, 8, 9]
BLOCKS = [3, 0, 7, 2]


@pytest.fixture
def target() -> TableTarget:
    return TableTarget(MODEL, num_blocks=8, block_size=4)


def judge(target: TargetModel, row: Row) -> Judgement:
    (judgement,) = target.verify([row])
    assert judgement is not None
    return judgement


def test_the_card_describes_the_model() -> None:
    limits = ServingLimits(max_context=20, max_rows=5)
    card = TableTarget(MODEL, limits=limits, num_blocks=8, block_size=4, name="toy").card
    assert (card.target.model, card.target.digest) == ("toy", MODEL.digest)
    assert card.target.vocabulary_fingerprint == TableTokenizer(64).fingerprint
    assert card.target.eos_token_ids == (EOS,)
    assert card.limits == limits
    assert card.vocabulary_size == 64


def test_drafts_are_accepted_up_to_the_first_wrong_one(target: TableTarget) -> None:
    text = MODEL.generate(PROMPT, 4)
    for wrong in range(4):
        drafts = text[:3]
        if wrong < 3:
            drafts[wrong] = (drafts[wrong] + 1) % 64
        row = Row(tokens=PROMPT + drafts, start=0, blocks=BLOCKS, drafts=3)
        assert judge(target, row) == Judgement(wrong, text[wrong])


def test_decoding_in_rounds_gives_the_models_text(target: TableTarget) -> None:
    text = list(PROMPT)
    held = 0
    drafter = MODEL.perturbed(0.2, seed=3)
    while len(text) < 27:
        drafts = drafter.generate(text, 4)
        row = Row(tokens=text[held:] + drafts, start=held, blocks=range(8), drafts=4)
        judgement = judge(target, row)
        held = len(text) + judgement.accepted
        text += [*drafts[: judgement.accepted], judgement.token]
    assert text[5:] == MODEL.generate(PROMPT, len(text) - 5)


def test_a_prompt_in_chunks_is_judged_like_one_in_a_piece(target: TableTarget) -> None:
    assert target.verify([Row(tokens=PROMPT[:3], start=0, blocks=BLOCKS, judge=False)]) == [None]
    row = Row(tokens=PROMPT[3:], start=3, blocks=BLOCKS)
    assert judge(target, row) == Judgement(0, MODEL.generate(PROMPT, 1)[0])


def test_rollback_is_feeding_again_at_an_earlier_position(target: TableTarget) -> None:
    target.verify([Row(tokens=[*PROMPT, 1, 2, 3], start=0, blocks=BLOCKS, drafts=3)])
    row = Row(tokens=[4], start=5, blocks=BLOCKS)
    assert judge(target, row).token == MODEL.generate([*PROMPT, 4], 1)[0]


def test_a_missed_rollback_gives_another_text(target: TableTarget) -> None:
    target.verify([Row(tokens=[*PROMPT, 1], start=0, blocks=BLOCKS, drafts=1)])
    answers = [
        judge(target, Row(tokens=[token], start=6, blocks=BLOCKS)).token for token in range(64)
    ]
    right = [MODEL.generate([*PROMPT, token], 1)[0] for token in range(64)]
    assert sum(map(int.__eq__, answers, right)) < 20


def test_sessions_in_one_pass_do_not_touch_each_other(target: TableTarget) -> None:
    rows = [
        Row(tokens=PROMPT, start=0, blocks=[4, 1]),
        Row(tokens=PROMPT[::-1], start=0, blocks=[6, 5]),
    ]
    expected = [MODEL.generate(PROMPT, 1), MODEL.generate(PROMPT[::-1], 1)]
    assert [[j.token] for j in target.verify(rows) if j] == expected


def test_each_position_has_its_own_noise() -> None:
    flat = TableTarget(TableModel(sharpness=0.0), num_blocks=8, block_size=4)
    sampling = SamplingParams(temperature=0.7, seed=9)

    def token_at(position: int) -> int:
        row = Row(tokens=[1] * position, start=0, blocks=range(8), sampling=sampling)
        return judge(flat, row).token

    tokens = [token_at(position) for position in range(1, 20)]
    assert len(set(tokens)) > 10
    row = Row(tokens=[1, *tokens[:6]], start=0, blocks=range(8), drafts=6, sampling=sampling)
    assert judge(flat, row) == Judgement(6, tokens[6])


def test_sampled_tokens_follow_the_models_distribution() -> None:
    model = TableModel(vocabulary_size=4, sharpness=1.0, seed=2)
    target = TableTarget(model)
    counts = np.zeros(4)
    for seed in range(4000):
        sampling = SamplingParams(temperature=1.0, seed=seed)
        counts[judge(target, Row(tokens=[1], start=0, blocks=[0], sampling=sampling)).token] += 1
    logits = model.logits(model.state_of([1])).astype(np.float64)
    p = np.exp(logits) / np.exp(logits).sum()
    # False alarm: χ² of 3 degrees of freedom above 25 has a probability below 2e-5.
    kept = p > 1e-6
    assert ((counts - 4000 * p) ** 2 / (4000 * p))[kept].sum() < 25


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(),
        SamplingParams(temperature=0.9, seed=4),
        SamplingParams(temperature=1.5, top_p=0.9, top_k=20, min_p=0.01, seed=5),
    ],
)
@pytest.mark.parametrize("vocabulary_size", [16, 320])
def test_a_drafter_of_the_same_model_is_always_right(
    sampling: SamplingParams, vocabulary_size: int
) -> None:
    model = TableModel(vocabulary_size=vocabulary_size, seed=6)
    target, drafter = TableTarget(model), TableDrafter(model)

    async def drafts() -> list[int]:
        await drafter.begin(sampling, [])
        first = await drafter.draft(0, [1])
        return [first.token] + [(await drafter.draft(2 + i, [])).token for i in range(31)]

    tokens = [1, *asyncio.run(drafts())]
    row = Row(tokens=tokens, start=0, blocks=range(8), drafts=32, sampling=sampling)
    assert judge(target, row).accepted == 32


# ------------------------------------------------------------------ faults


@pytest.fixture
def fed(target: TableTarget) -> TableTarget:
    """Ten tokens of a session in blocks 3, 0 and 7; another session's in 1 and 4."""
    target.verify(
        [
            Row(tokens=range(10, 20), start=0, blocks=BLOCKS, judge=False),
            Row(tokens=range(30, 36), start=0, blocks=[1, 4], judge=False),
        ]
    )
    return target


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        (Row(tokens=[1], start=10, blocks=[0, 3, 7]), "position 0 .* another context"),
        (Row(tokens=[1], start=10, blocks=[3, 1, 7]), "position 4 .*block 1.* another context"),
        (Row(tokens=[1], start=10, blocks=[3, 0, 5]), "position 8 .*block 5.* never written"),
        (Row(tokens=[1], start=11, blocks=[3, 0, 7]), "position 10 .* never written"),
        (Row(tokens=[1], start=10, blocks=[3, 0]), "can't hold 11 positions"),
        (Row(tokens=[1], start=10, blocks=[3, 0, 0]), "twice in one block table"),
        (Row(tokens=[1], start=10, blocks=[3, 0, 8]), "outside the 8"),
        (Row(tokens=[64], start=10, blocks=[3, 0, 7]), "outside the vocabulary"),
        (Row(tokens=[-1], start=10, blocks=[3, 0, 7]), "outside the vocabulary"),
        (Row(tokens=[], start=10, blocks=[3, 0, 7]), "no tokens"),
        (Row(tokens=[1], start=10, blocks=[3, 0, 7], drafts=1), "committed token before"),
        (Row(tokens=[1] * 23, start=10, blocks=range(8)), "past a context of 32"),
    ],
)
def test_a_row_that_contradicts_the_slots_is_named(fed: TableTarget, row: Row, fault: str) -> None:
    with pytest.raises(InternalError, match=fault):
        fed.verify([row])


def test_a_block_given_to_two_sessions_is_caught_when_the_first_reads_it(fed: TableTarget) -> None:
    fed.verify([Row(tokens=[40, 41], start=0, blocks=[0], judge=False)])
    with pytest.raises(InternalError, match=r"position 4 \(block 0\) holds another context"):
        fed.verify([Row(tokens=[1], start=10, blocks=BLOCKS)])


def test_two_rows_writing_one_slot_are_caught(target: TableTarget) -> None:
    rows = [Row(tokens=PROMPT, start=0, blocks=[2, 3]), Row(tokens=[1], start=0, blocks=[3])]
    with pytest.raises(InternalError, match="two owners"):
        target.verify(rows)


def test_more_drafts_than_rows_are_refused() -> None:
    limits = ServingLimits(max_context=64, max_rows=3)
    target = TableTarget(MODEL, limits=limits)
    target.verify([Row(tokens=[1, 2, 3], start=0, blocks=[0], drafts=2)])
    with pytest.raises(InternalError, match="3 rows"):
        target.verify([Row(tokens=[1, 2, 3, 4], start=0, blocks=[0], drafts=3)])


def test_closing_forgets(fed: TableTarget) -> None:
    fed.close()
    with pytest.raises(InternalError, match="never written"):
        fed.verify([Row(tokens=[1], start=10, blocks=BLOCKS)])
