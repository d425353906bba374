"""Drafts without a model: fewer passes where the text is expected, the same text anywhere."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from virtual_client import PROMPT, TOKENIZER, read, serving

from cloud_verifier.table_target import TableTarget
from draftwire.errors import InvalidRequest
from draftwire.testing.clock import run_virtual
from draftwire.testing.table import TableModel
from draftwire.types import SamplingParams, VerifyMode
from edge_client.arguments import build_parser
from edge_client.drafters.expected import ExpectedText
from edge_client.drafters.lookup import LookupDrafter
from edge_client.generation_arguments import sampling_options
from edge_client.lookup_controller import LookupController
from edge_client.options import settings
from edge_client.plan import FixedController, Plan, View
from edge_client.results import Summary

MODEL = TableModel(vocabulary_size=320, states=512)
LOOP = TableModel(vocabulary_size=320, states=1)  # says the same token for ever
LAST = TableTarget(MODEL).card.limits.max_context - 6  # a prompt that leaves six tokens room
WHOLE = read(model=MODEL, max_tokens=120, num_draft_tokens=0)


def predicted(
    model: TableModel = MODEL, drafters: int = 0, prompt: str | list[int] = PROMPT, **options: Any
) -> Summary:
    async def run() -> Summary:
        async with serving(model, drafters=drafters) as (client, _):
            stream = client.generate(prompt, **{"max_tokens": 120} | options)
            await stream.read()
            return stream.summary

    return run_virtual(run())  # type: ignore[no-any-return]


@pytest.mark.parametrize("drafters", [0, 1])
def test_a_prediction_that_holds_takes_few_passes(drafters: int) -> None:
    summary = predicted(prediction=WHOLE.token_ids, drafters=drafters)
    assert summary.token_ids == WHOLE.token_ids
    assert summary.rounds <= 1 + -(-120 // 32) + 1  # the first token, and 32 drafts a pass
    assert summary.alpha == 1


def test_a_prediction_may_be_text() -> None:
    text = " the of nabe gabe" * 20
    tokens = TOKENIZER.encode(text)

    async def run() -> list[int]:
        async with serving(MODEL) as (client, _):
            return client._expected(text)

    assert run_virtual(run()) == tokens


@pytest.mark.parametrize("token", [-1, 320, 2**40])
def test_a_prediction_of_what_is_no_token_is_refused_before_anything_is_sent(token: int) -> None:
    async def run() -> None:
        async with serving(MODEL) as (client, engine):
            stream = client.generate(PROMPT, prediction=[*WHOLE.token_ids, token])
            with pytest.raises(InvalidRequest, match="prediction"):
                await stream.read()
            assert not engine.active
            assert await client.generate(PROMPT, max_tokens=1).read()  # its drafter is free again

    run_virtual(run())


@pytest.mark.parametrize("prediction", [WHOLE.token_ids * 10, (*WHOLE.token_ids, 7), (7,)])
@pytest.mark.parametrize("drafters", [0, 1])
def test_a_prediction_may_be_longer_than_the_text_or_the_context(
    prediction: tuple[int, ...], drafters: int
) -> None:
    """1,200 tokens of it, where the text has 120, or ends with the context."""
    assert predicted(prediction=prediction, drafters=drafters).token_ids == WHOLE.token_ids
    summary = predicted(prediction=prediction, drafters=drafters, prompt=[5] * LAST, max_tokens=0)
    assert summary.token_ids == tuple(MODEL.generate([5] * LAST, 6))


def test_a_prompt_of_one_token_has_nothing_to_look_up() -> None:
    for options in ({}, {"repetition_penalty": 1.3, "temperature": 0.9, "seed": 2**64 - 1}):
        summary = predicted(prompt=[5], prompt_lookup=True, **options)
        assert summary.token_ids == predicted(prompt=[5], num_draft_tokens=0, **options).token_ids


@pytest.mark.parametrize("kind", ["inserted", "left out", "changed"])
def test_after_a_difference_it_is_taken_up_again(kind: str) -> None:
    prediction = list(WHOLE.token_ids)
    if kind == "inserted":
        prediction[40:40] = [7, 8, 9]
    elif kind == "left out":
        del prediction[40:45]
    else:
        prediction[40] = 1 + prediction[40] % 319
    summary = predicted(prediction=prediction)
    assert summary.token_ids == WHOLE.token_ids
    assert summary.accepted > 90
    assert summary.rounds < 25


@pytest.mark.parametrize(("old", "new"), [([7], [8]), ([7], [8, 9, 10]), ([7, 11, 12], [8])])
def test_a_name_that_changed_once_is_expected_to_change_everywhere(
    old: list[int], new: list[int]
) -> None:
    """One difference, though the name stands there ten times."""
    between = [[20 + 10 * i + j for j in range(9)] for i in range(10)]
    prediction = [token for part in between for token in (*part, *old)]
    output = [token for part in between for token in (*part, *new)]

    async def run() -> list[int]:
        drafter = LookupDrafter(start=1, prediction=prediction)
        await drafter.begin(SamplingParams(), [])
        wrong, kept, told = [], 0, [1]
        at = 0
        while at < len(output):
            proposal = await drafter.draft(kept, told)
            if proposal is not None and proposal.token == output[at]:
                kept, told = 1 + at + 1, []
            else:
                wrong.append(at)
                kept, told = 1 + at, [output[at]]
            at += 1
        return wrong

    wrong = asyncio.run(run())
    assert wrong[0] == 9
    assert all(at < 9 + len(new) + 3 for at in wrong[:-1])
    assert wrong[-1] < 20 + 2 * len(new)


def test_after_a_difference_the_nearest_place_is_meant() -> None:
    """Code repeats itself: the latest place where these tokens stand may be another method."""
    line = [7, 8, 9]
    expected = ExpectedText([*line, 1, *line, 2, *line, 3, *line, 4])
    output = [*line, 1, 50, 8, 9]
    assert expected.find(output) == (7, 2)
    expected.revise(output)
    assert expected.tokens == [*output, 2, *(50, 8, 9), 3, *(50, 8, 9), 4]


def test_more_is_sent_the_longer_it_has_held() -> None:
    """A wrong chunk costs the verifier as many rows as a right one."""
    drafter = LookupDrafter(start=0, prediction=WHOLE.token_ids)
    controller = LookupController(FixedController(Plan.cloud_alone()), drafter)
    drafter.predicting = True
    chunks = []
    for drafter.agreed in (1, 2, 4, 8, 16, 200):
        chunks.append(controller.plan(View(confidences=(), sent=0, remaining=9, behind=0)).chunk)
    assert chunks == [4, 4, 8, 16, 32, 32]
    # What is not judged yet has not held.
    view = View(confidences=(0.5,) * 12, sent=12, remaining=9, behind=0)
    drafter.agreed = 14
    assert controller.plan(view).chunk == 4


def test_it_is_taken_up_where_two_tokens_agree() -> None:
    """Sooner than text that merely repeats itself: it was given for this very answer."""

    async def run() -> list[bool]:
        found = []
        for context in ([9, 1, 2], [1, 2, 5, 9, 1, 2]):
            drafter = LookupDrafter(start=1, prediction=[7, 1, 2, 3])
            await drafter.begin(SamplingParams(), [])
            proposal = await drafter.draft(0, context)
            assert proposal is not None
            assert proposal.token == 3
            found.append(drafter.predicting)
        return found

    assert asyncio.run(run()) == [True, True]


@pytest.mark.parametrize("options", [{}, {"num_draft_tokens": 4}])
@pytest.mark.parametrize("drafters", [0, 1])
def test_a_prediction_that_is_wrong_changes_nothing(drafters: int, options: dict[str, Any]) -> None:
    wrong = [1 + token % 319 for token in WHOLE.token_ids]
    summary = predicted(prediction=wrong, drafters=drafters, **options)
    assert summary.token_ids == WHOLE.token_ids


def test_what_was_there_before_is_drafted_again() -> None:
    alone = predicted(LOOP, num_draft_tokens=0)
    looked_up = predicted(LOOP, prompt_lookup=True, num_draft_tokens=8)
    assert looked_up.token_ids == alone.token_ids
    assert looked_up.accepted > 90
    assert looked_up.rounds < alone.rounds / 3


def test_where_nothing_is_found_the_cloud_goes_on_without_waiting_for_the_device() -> None:
    async def seconds(**options: Any) -> float:
        started = asyncio.get_running_loop().time()
        async with serving(MODEL, drafters=0, delay_s=0.05) as (client, _):
            stream = client.generate(PROMPT, max_tokens=120, **options)
            await stream.read()
            assert stream.summary.token_ids == WHOLE.token_ids
        return asyncio.get_running_loop().time() - started

    looking = run_virtual(seconds(prompt_lookup=True, num_draft_tokens=8))
    assert looking < 1.3 * run_virtual(seconds(num_draft_tokens=0))


def test_the_draft_model_drafts_where_nothing_is_found() -> None:
    summary = predicted(drafters=1, prompt_lookup=True, num_draft_tokens=4)
    assert summary.token_ids == WHOLE.token_ids
    assert summary.accepted > 40


@pytest.mark.parametrize("drawn", [True, False])
def test_whether_the_models_drafts_are_sent_does_not_depend_on_what_stands_elsewhere(
    drawn: bool,
) -> None:
    """Else `rejection` were biased: a draft that is followed by a find would be sent more often."""
    drafter = LookupDrafter()
    controller = LookupController(FixedController(Plan.cloud_alone()), drafter)
    drafter.predicting = False
    for count in range(3):
        drafter.found = not drawn or count > 1
        plan = controller.plan(View(confidences=(0.5,) * count, sent=0, remaining=9, behind=0))
    assert (plan.chunk == 0) == drawn
    drafter.found = True
    judged = controller.plan(View(confidences=(), sent=0, remaining=9, behind=0))
    assert judged.chunk > 0


@pytest.mark.parametrize("mode", VerifyMode)
def test_looked_up_drafts_are_judged_in_every_mode(mode: VerifyMode) -> None:
    summary = predicted(prediction=WHOLE.token_ids, verify_mode=mode, drafters=1)
    assert summary.token_ids == WHOLE.token_ids
    sampled = predicted(
        prediction=WHOLE.token_ids, verify_mode=mode, drafters=1, temperature=0.8, seed=1
    )
    assert len(sampled.token_ids) == 120


def test_the_source_with_the_longer_agreement_is_believed() -> None:
    async def run() -> list[int]:
        drafter = LookupDrafter(start=4, prediction=[1, 2, 3, 30])
        await drafter.begin(SamplingParams(), [])
        tokens = []
        # The prediction agrees in three tokens, the text itself in four.
        for text in ([9, 1, 2, 3, 40, 5, 1, 2, 3], [9, 1, 2, 3, 40, 5, 9, 1, 2, 3]):
            proposal = await drafter.draft(0, text)
            assert proposal is not None
            tokens.append(proposal.token)
        return tokens

    assert asyncio.run(run()) == [30, 40]


def test_the_command_reads_a_prediction_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "expected.txt"
    file.write_text("as it was", encoding="utf-8")
    arguments = build_parser().parse_args(["generate", "x", "--prediction", str(file)])
    assert settings(**sampling_options(arguments)).prediction == "as it was"
    assert "prediction" not in sampling_options(build_parser().parse_args(["generate"]))
    with pytest.raises(SystemExit):
        build_parser().parse_args(["generate", "x", "--prediction", str(tmp_path / "none")])
