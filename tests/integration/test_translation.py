"""Live translation on the table model: the same text as afresh, in fewer passes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from interpreter_model import GAP, TOKENIZER, WORDS, Interpreter, sentence
from virtual_client import serving

from draftwire.errors import DraftwireError, InvalidRequest
from draftwire.testing.clock import run_virtual
from edge_client import AsyncEdgeClient
from edge_client.translation_results import TranslationReport, TranslationUpdate

LINES = [[sentence(*range(start, start + count)) for count in range(2, 25, 2)] for start in (3, 40)]
LINES[0][4:4] = [sentence(3, 4, 99, *range(6, 15))]  # corrected in the middle


@contextlib.asynccontextmanager
async def interpreting(drafters: int = 1, delay_s: float = 0.0) -> AsyncIterator[AsyncEdgeClient]:
    async with serving(Interpreter(), Interpreter(9), drafters, delay_s, TOKENIZER) as (client, _):
        yield client


def follow(
    lines: list[list[str]], *, pause_s: float | None = None, drafters: int = 1, **options: Any
) -> tuple[list[TranslationUpdate], TranslationReport]:
    """Translate lines, each update when the one before has settled, or after so many seconds."""
    events: list[TranslationUpdate] = []

    async def run() -> TranslationReport:
        clock = asyncio.get_running_loop().time
        async with (
            interpreting(drafters) as client,
            client.translate(
                "fr", **{"template": "{source}", "shown": events.append, "clock": clock} | options
            ) as translator,
        ):
            for line in lines:
                for caption in line:
                    translator.update(caption)
                    if pause_s is None:
                        await translator.settled()
                    else:
                        await asyncio.sleep(pause_s)
                translator.commit()
            await translator.settled()
            return translator.report

    return events, run_virtual(run())


def afresh(captions: list[str], **options: Any) -> list[tuple[tuple[int, ...], int]]:
    """The translation of each caption by itself, and its passes."""

    async def run() -> list[tuple[tuple[int, ...], int]]:
        results = []
        async with interpreting() as client:
            for caption in captions:
                prompt = TOKENIZER.encode_chat([{"role": "user", "content": caption}])
                stream = client.generate(prompt, stop="\n", seed=0, **options)
                await stream.read()
                results.append((stream.summary.token_ids, stream.summary.usage.passes))
        return results

    return run_virtual(run())


@pytest.mark.parametrize(
    ("drafters", "options", "fewer"), [(0, {}, 2), (1, {}, 2), (1, {"num_draft_tokens": 4}, 5)]
)
def test_each_update_is_what_translating_it_afresh_gives(
    drafters: int, options: dict[str, Any], fewer: int
) -> None:
    events, report = follow(LINES, drafters=drafters, **options)
    settled = [event for event in events if event.settled and not event.final]
    alone = afresh([event.source for event in settled], num_draft_tokens=0)
    assert [event.source for event in settled] == [caption for line in LINES for caption in line]
    assert [event.token_ids for event in settled] == [tokens for tokens, _ in alone]
    assert report.passes == sum(event.passes for event in events if event.settled)
    assert fewer * report.passes < sum(passes for _, passes in alone)
    assert not report.lossy


def test_it_takes_fewer_passes_than_drafting_each_update_afresh() -> None:
    captions = [caption for line in LINES for caption in line]
    passes = sum(passes for _, passes in afresh(captions, num_draft_tokens=4))
    _, report = follow(LINES, num_draft_tokens=4)
    assert 1.5 * report.passes < passes


def test_what_did_not_change_is_verified_in_the_pass_that_reads_the_prompt() -> None:
    """The source goes on where it ends, and so does the translation: one word of it changes."""
    first, second = sentence(*range(3, 30)), sentence(*range(3, 33))
    events, _ = follow([[first, second]], num_draft_tokens=4)
    passes = [event.passes for event in events if event.settled]
    assert passes[1:] == [2, 0]  # up to the last word, and the rest; the final one is there


def test_a_final_line_that_is_translated_takes_no_pass() -> None:
    events, report = follow(LINES)
    final = [event for event in events if event.final]
    assert [event.source for event in final] == [line[-1] for line in LINES]
    assert [event.passes for event in final] == [0, 0]
    assert report.lines == 2
    assert report.words == sum(len(event.text.split()) for event in final)


def test_a_newer_caption_supersedes_what_is_being_translated() -> None:
    events, report = follow(LINES, pause_s=0.015, num_draft_tokens=4)
    final = [event for event in events if event.final]
    alone = afresh([line[-1] for line in LINES], num_draft_tokens=0)
    assert [event.source for event in final] == [line[-1] for line in LINES]
    assert [event.token_ids for event in final] == [tokens for tokens, _ in alone]
    assert report.superseded > 5
    assert report.updates == sum(map(len, LINES))
    translated = {event.source for event in events if event.settled}
    assert report.superseded == report.updates - len(translated)
    assert max(report.lags_ms) > 15  # of the oldest that waited


def test_captions_given_at_once_are_translated_once_a_line() -> None:
    events, report = follow(LINES, pause_s=0)
    sources = [event.source for event in events if event.settled]
    assert list(dict.fromkeys(sources)) == [line[-1] for line in LINES]
    assert report.superseded == report.updates - 2


def test_what_a_superseded_translation_had_is_expected_of_the_next() -> None:
    _, waited = follow(LINES[:1], num_draft_tokens=4)
    _, hurried = follow(LINES[:1], pause_s=0.03, num_draft_tokens=4)
    assert hurried.superseded
    assert hurried.passes <= waited.passes


def test_words_that_are_held_back_do_not_flicker() -> None:
    """Only the last word changes as the source goes on, but for the caption corrected inside."""
    _, shown = follow(LINES[1:])
    _, held = follow(LINES[1:], hold_back=1)
    assert shown.taken_back > 0
    assert held.taken_back == 0
    assert held.words == shown.words


def test_stability_keeps_a_word_that_the_target_prefers_little() -> None:
    """The word before a correction depends on it; the corrected one differs by more."""
    likely, other = (next(n for n in range(60) if WORDS[n] % 3 == rest) for rest in (0, 1))
    line = [sentence(70, 71, word, 73, 74, 75, 76) for word in (likely, other)]
    before, exact = (
        event.token_ids for event in follow([line])[0] if event.settled and not event.final
    )
    events, report = follow([line], stability=GAP + 0.1)
    assert report.lossy
    assert before[1] != exact[1]
    assert events[-1].token_ids == (exact[0], before[1], *exact[2:])
    assert events[-1].text == b"".join(map(TOKENIZER.piece, events[-1].token_ids)).decode().strip()
    assert report.taken_back < follow([line])[1].taken_back


@pytest.mark.parametrize("stability", [0.0, GAP - 0.1])
def test_a_bonus_below_the_targets_preference_changes_nothing(stability: float) -> None:
    events, _ = follow(LINES, stability=stability)
    exact, _ = follow(LINES)
    assert [e.token_ids for e in events if e.settled] == [e.token_ids for e in exact if e.settled]


def test_lines_before_are_context() -> None:
    """The template's own text makes the prompt; what the model makes of it is its affair."""
    prompts: list[str] = []

    async def run() -> None:
        async with interpreting() as client:
            encode = TOKENIZER.encode_chat
            client.tokenizer = type(
                "Spy",
                (),
                {
                    "__getattr__": lambda _, name: getattr(TOKENIZER, name),
                    "encode_chat": lambda _, messages: (
                        prompts.append(messages[0]["content"]) or encode(messages)
                    ),
                },
            )()
            async with client.translate(
                "fr", template="{context}{source}", context=1
            ) as translator:
                for line in ("the", "of", "in"):
                    translator.update(line)
                    translator.commit()

    run_virtual(run())
    assert [prompt.count(" = ") for prompt in prompts] == [0, 1, 1]
    assert "of = " in prompts[2]


def test_what_fails_is_raised_where_the_app_waits() -> None:
    async def run() -> None:
        async with interpreting() as client:
            translator = client.translate("fr", template="{source}", max_tokens=10)
            with pytest.raises(DraftwireError):
                async with translator:
                    translator.update("the " * 100_000)

    run_virtual(run())


@pytest.mark.parametrize(
    "options",
    [
        {"hold_back": -1},
        {"stability": -1.0},
        {"stability": float("nan")},
        {"context": -1},
        {"template": "no place for it"},
        {"template": "{source} {nonsense}"},
        {"template": "{source}", "glossary": {"a": "b"}},
        {"template": "{source}", "context": 1},
        {"prediction": "x"},
        {"temperature": -1.0},
    ],
)
def test_what_is_out_of_range_is_refused_before_any_work(options: dict[str, Any]) -> None:
    async def run() -> None:
        async with interpreting() as client:
            with pytest.raises(InvalidRequest):
                client.translate("fr", **options)

    run_virtual(run())


def test_leaving_early_ends_what_is_under_way() -> None:
    async def run() -> None:
        async with interpreting() as client:

            async def leave() -> None:
                async with client.translate("fr", template="{source}") as translator:
                    translator.update(LINES[0][-1])
                    await asyncio.sleep(0.015)
                    raise KeyError

            with pytest.raises(KeyError):
                await leave()
            assert await client.generate("the", max_tokens=1).read()  # its drafter is free

    run_virtual(run())


def test_half_of_a_surrogate_pair_is_refused_and_the_next_caption_is_translated() -> None:
    async def run() -> int:
        async with interpreting() as client, client.translate("fr") as translator:
            with pytest.raises(InvalidRequest, match="surrogate"):
                translator.update("\ud83d")
            translator.update(sentence(1, 2))
            translator.commit()
            await translator.settled()
            return translator.report.lines

    assert run_virtual(run()) == 1
