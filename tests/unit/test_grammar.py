"""Outputs within a grammar: what the verifier decides, what a device drafts, where a text ends."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from virtual_client import MODEL, PROMPT, TOKENIZER, read, serving

pytest.importorskip("llguidance")

from cloud_verifier.admission import check_open
from cloud_verifier.engine import Arrival, Detached, Engine
from cloud_verifier.sessions import Stream
from cloud_verifier.table_target import TableTarget
from draftwire.errors import DraftwireError, InvalidRequest, LimitExceeded, UnsupportedParameter
from draftwire.grammar import GrammarCompiler
from draftwire.testing.clock import run_virtual
from draftwire.testing.table import TableModel, table_pieces
from draftwire.types import (
    ClientFrame,
    Draft,
    Finished,
    FinishReason,
    Grammar,
    History,
    Open,
    StopRules,
    Verdict,
    VerifyMode,
)
from edge_client import options
from edge_client.arguments import build_parser
from edge_client.drafters.table import TableDrafter
from edge_client.generation_arguments import sampling_options
from edge_client.results import Summary

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["cat", "dog"]},
    },
    "required": ["name", "kind"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
ENDLESS = TableModel(vocabulary_size=320, states=512)
GRAMMARS: dict[str, dict[str, Any]] = {
    "schema": {"json_schema": SCHEMA},
    "regex": {"regex": r"(the|a) [a-z]{3,6}, [0-9]{2}( or more)?"},
    "lark": {"lark": 'start: "<" /[a-f]{1,9}/ ">" tail\ntail: "x" | "y" tail'},
}


def obeys(name: str, text: str) -> bool:
    if name == "schema":
        value = json.loads(text)
        return set(value) == {"name", "kind"} and value["kind"] in ("cat", "dog")
    pattern = GRAMMARS["regex"]["regex"] if name == "regex" else "<[a-f]{1,9}>y*x"
    return re.fullmatch(pattern, text) is not None


# ------------------------------------------------------------------ the text


@pytest.mark.parametrize("name", GRAMMARS)
@pytest.mark.parametrize("mode", VerifyMode)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_text_obeys_its_grammar_and_is_the_same_split_and_alone(
    name: str, mode: VerifyMode, temperature: float
) -> None:
    common = {"temperature": temperature, "seed": 4, "verify_mode": mode, "max_tokens": 90}
    exact = mode is VerifyMode.MATCH
    runs = [
        read(num_draft_tokens=k, **common, **GRAMMARS[name], draft_with_grammar=guided)
        for k, guided in ((4, True), (0, True), (4, False), (None, True))[: 4 if exact else 1]
    ]
    assert all(run.finish_reason is FinishReason.STOP for run in runs)
    assert all(obeys(name, run.text) for run in runs)
    if exact:
        assert len({run.token_ids for run in runs}) == 1


def test_penalties_and_bias_come_before_the_grammar() -> None:
    """The bias alone would have one token everywhere."""
    wanted = TOKENIZER.encode("d")[0]
    run = read(regex="[abc]{2}[cd]{3}", logit_bias={wanted: 90.0}, repetition_penalty=1.2)
    assert run.text.endswith("ddd")


def test_truncation_comes_after_the_grammar() -> None:
    """The one token that top-k keeps is legal."""
    assert read(regex="[xyz]{5}", top_k=1, temperature=0.8).finish_reason is FinishReason.STOP


# ------------------------------------------------------------------ where it ends


def test_the_end_of_the_grammar_ends_the_text_without_an_end_token() -> None:
    for ignore_eos in (False, True):
        run = read(regex="ab", ignore_eos=ignore_eos)
        assert run.text == "ab"
        assert run.finish_reason is FinishReason.STOP
        assert 0 not in run.token_ids


def test_the_model_may_end_where_the_grammar_may_and_nowhere_else() -> None:
    run = read(regex="(ab){3,}", logit_bias={0: 100.0})
    assert (run.text, run.token_ids[-1]) == ("ababab", 0)
    assert read(regex="(ab){3,}", logit_bias={0: 100.0}, ignore_eos=True, max_tokens=20).text == (
        "ab" * 10
    )


def test_min_tokens_holds_the_end_token_back_but_not_the_end_of_the_grammar() -> None:
    longer = read(regex="(ab){3,}", logit_bias={0: 100.0}, min_tokens=8)
    assert (longer.text, longer.token_ids[-1]) == ("ab" * 4, 0)
    assert read(regex="(ab){3}", min_tokens=8).text == "ababab"


def test_stop_strings_and_length_end_a_text_in_the_middle_of_its_grammar() -> None:
    assert read(regex="[a-d]{3}<[a-d]{3}", stop="<").text == read(regex="[a-d]{3}").text
    assert read(regex="[a-d]{9}", max_tokens=2).finish_reason is FinishReason.LENGTH


def test_a_stop_token_with_a_text_is_text_that_must_be_legal() -> None:
    (x,) = TOKENIZER.encode("x")
    assert read(regex="[ab]{2}", stop_token_ids=[x], logit_bias={x: 100.0}).text != "x"
    assert read(regex="[abx]{9}", stop_token_ids=[x], logit_bias={x: 100.0}).text == "x"


def test_min_tokens_gives_way_where_only_a_stop_token_is_legal() -> None:
    (x,) = TOKENIZER.encode("x")
    run = read(regex="[ab]x{1,3}[cd]", stop_token_ids=[x], min_tokens=2, logit_bias={x: 100.0})
    assert run.text[1:] == "xx"
    assert read(regex="ax?", stop_token_ids=[x], min_tokens=2).text == "ax"


# ------------------------------------------------------------------ refused before any work


@pytest.mark.parametrize(
    ("kind", "text", "named"),
    [
        ("regex", "(a", "unclosed group"),
        ("regex", "", "no text at all"),
        ("lark", "start: nothing", "unknown name"),
        ("json_schema", "{", "json_schema"),
        ("json_schema", "false", "Unsatisfiable"),
        ("json_schema", '{"type": "array", "uniqueItems": true}', "uniqueItems"),
        ("regex", ".*" * 800, "limits"),
    ],
)
def test_what_does_not_compile_is_refused_before_any_work(kind: str, text: str, named: str) -> None:
    engine = engine_of(MODEL)
    error = run(engine, opening(grammar=Grammar(kind=kind, text=text)))[-1]
    assert isinstance(error, InvalidRequest)
    assert named in error.message
    assert error.remedy
    assert not engine.active
    assert not engine.idle
    with pytest.raises(InvalidRequest, match=re.escape(error.message)):
        read(**{kind: text})


def test_a_verifier_without_llguidance_refuses_a_grammar_by_name() -> None:
    card = replace(TableTarget(MODEL).card, features=("stop_strings",))
    with pytest.raises(UnsupportedParameter, match="grammar"):
        check_open(opening(), card)
    assert "grammar" in TableTarget(MODEL).card.features
    assert "grammar" not in TableTarget(TableModel(vocabulary_size=64)).card.features


def test_options_are_checked() -> None:
    with pytest.raises(InvalidRequest, match="json_schema and lark exclude each other"):
        options.settings(json_schema={}, lark="start: /a/")
    with pytest.raises(InvalidRequest, match="longer than 65536 bytes"):
        options.settings(regex="é" * 40_000)
    assert options.settings(json_schema={"type": "null"}).request.grammar == Grammar(
        kind="json_schema", text='{"type": "null"}'
    )
    assert not options.settings().draft_with_grammar
    assert not options.settings(regex="a", draft_with_grammar=False).draft_with_grammar


# ------------------------------------------------------------------ the verifier's rounds

PIECES = [b"", *table_pieces(320)[1:]]
TEXT = TOKENIZER.encode(PROMPT)
WORDS = Grammar(kind="regex", text="[a-z ]{40}")


def opening(text: tuple[int, ...] = (), **changes: Any) -> Open:
    values: dict[str, Any] = {
        "session_id": bytes(16),
        "attempt": 1,
        "generation": 1,
        "start": len(TEXT),
        "history": History(tokens=(*TEXT, *text)),
        "vocabulary_fingerprint": TOKENIZER.fingerprint,
        "stop": StopRules(max_tokens=20),
        "grammar": WORDS,
    }
    return Open(**(values | changes))


def engine_of(model: TableModel) -> Engine:
    return Engine(TableTarget(model), clock=lambda: 0.0)


def run(engine: Engine, *frames: ClientFrame | Detached, stream: Stream | None = None) -> list[Any]:
    stream = stream or Stream()
    told = engine.step([Arrival(stream, frame, 0.0) for frame in frames])
    while engine.has_work:
        told += engine.step([])
    return [item for to, item in told if to is stream]


def go(at: int, credit: int = 60, **draft: Any) -> Draft:
    return Draft(base=at, epoch=0, credit=credit, **draft)


def text_of(told: list[Any], drafted: tuple[int, ...] = ()) -> tuple[int, ...]:
    text: tuple[int, ...] = ()
    for verdict in told:
        if isinstance(verdict, Verdict):
            text += (*drafted[: verdict.accepted], *verdict.next)
            drafted = ()
    return text


WHOLE = text_of(run(engine_of(ENDLESS), opening(), go(len(TEXT))))


@pytest.mark.parametrize("mode", VerifyMode)
@pytest.mark.parametrize("hold", [0, 1, 3])
def test_an_illegal_draft_is_rejected_and_leaves_no_trace(hold: int, mode: VerifyMode) -> None:
    (illegal,) = TOKENIZER.encode("Q")
    drafts = (*WHOLE[:hold], illegal, *WHOLE[hold:5])
    told = run(engine_of(ENDLESS), opening(mode=mode), go(len(TEXT), tokens=drafts))
    first = next(item for item in told if isinstance(item, Verdict))
    assert first.accepted == hold
    assert text_of(told, drafts) == WHOLE
    assert isinstance(told[-1], Finished)


def test_drafts_beyond_the_end_of_the_grammar_are_cut() -> None:
    grammar = Grammar(kind="regex", text="[a-z]{3}")
    alone = text_of(run(engine_of(MODEL), opening(grammar=grammar), go(len(TEXT))))
    for beyond in ((0,), (5, 5), (0, 0)):
        drafts = (*alone, *beyond)
        told = run(engine_of(MODEL), opening(grammar=grammar), go(len(TEXT), tokens=drafts))
        assert text_of(told, drafts) == alone
        assert told[-1].reason is FinishReason.STOP


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("heard", [0, 3, 7])
def test_a_text_goes_on_after_a_cut_as_if_there_had_been_none(heard: int, lost: bool) -> None:
    """With the session still there, or at a verifier that must read the grammar into the text."""
    engine, stream = engine_of(ENDLESS), Stream()
    run(engine, opening(), go(len(TEXT), credit=9), Detached(), stream=stream)
    assert text_of(run(engine, opening(), go(len(TEXT)))) == ()  # a known attempt
    if lost:
        engine = engine_of(ENDLESS)
    known = WHOLE[:heard]
    told = run(engine, opening(known, attempt=2), go(len(TEXT) + heard))
    assert (*known, *text_of(told)) == WHOLE


def test_a_finished_text_is_found_finished_in_the_history() -> None:
    grammar = Grammar(kind="regex", text="[a-z]{3}")
    alone = text_of(run(engine_of(MODEL), opening(grammar=grammar), go(len(TEXT))))
    told = run(engine_of(MODEL), opening(alone, grammar=grammar))
    assert told[-1].reason is FinishReason.STOP
    assert text_of(told) == ()


def test_a_history_that_the_grammar_does_not_allow_is_refused() -> None:
    told = run(engine_of(MODEL), opening(tuple(TOKENIZER.encode("Q"))))
    assert isinstance(told[-1], InvalidRequest)
    assert "history" in told[-1].message


def test_a_grammar_too_costly_to_follow_ends_its_own_stream_only() -> None:
    engine = engine_of(ENDLESS)
    costly = Grammar(
        kind="lark", text="start: (" + " | ".join(f'"{n}x" start' for n in range(2500)) + ")"
    )
    streams = [Stream(), Stream()]
    frames = [opening(grammar=costly), opening(session_id=b"1" * 16)]
    arrivals = [
        Arrival(stream, frame, 0.0)
        for stream, open_ in zip(streams, frames, strict=True)
        for frame in (open_, go(len(TEXT)))
    ]
    told = engine.step(arrivals)
    while engine.has_work:
        told += engine.step([])
    first, second = ([item for to, item in told if to is stream] for stream in streams)
    assert isinstance(first[-1], InvalidRequest | LimitExceeded)
    assert text_of(second) == WHOLE


@pytest.mark.parametrize("regex", ["[ab]\x04", "\x04a", "[ab]{2}(\x04|\x05)"])
def test_a_character_that_can_not_be_spelt_is_found_before_anything_wrong_is_said(
    regex: str,
) -> None:
    """Not every vocabulary has every byte."""
    pieces = [b"\0" if piece in (b"\x04", b"\x05") else piece for piece in PIECES]
    compiler = GrammarCompiler(pieces)

    def write() -> None:
        matcher = compiler.compile(Grammar(kind="regex", text=regex))
        for _ in range(4):
            mask = matcher.mask()
            assert mask is not None
            matcher.extend([int(mask.argmax())])
            matcher.check()

    with pytest.raises(DraftwireError, match="can't be"):
        write()


# ------------------------------------------------------------------ the device


def test_the_device_drafts_what_is_legal_and_forced_tokens_without_its_model() -> None:
    async def main() -> tuple[Summary, TableDrafter]:
        async with serving(MODEL, draft_model=MODEL) as (client, _):
            stream = client.generate(PROMPT, num_draft_tokens=4, json_schema=SCHEMA)
            await stream.read()
            (drafter,) = client._drafters
            assert isinstance(drafter, TableDrafter)
            return stream.summary, drafter

    summary, drafter = run_virtual(main())
    assert summary.alpha == 1
    assert drafter.forced > 10
    assert obeys("schema", summary.text)


def test_drafts_hold_less_often_where_the_device_does_not_know_the_grammar() -> None:
    guided, plain = (
        read(json_schema=SCHEMA, draft_with_grammar=guided) for guided in (True, False)
    )
    assert guided.token_ids == plain.token_ids
    assert (guided.alpha or 0) > (plain.alpha or 0)


def test_what_is_looked_up_is_legal_too() -> None:
    """A prediction that begins illegally is not drafted at all, however long it is."""
    common = {"json_schema": SCHEMA, "num_draft_tokens": 4}
    plain = read(**common)
    misled, briefly = (read(prediction=text, **common) for text in ("o JSON at all", "o"))
    assert misled.token_ids == plain.token_ids
    assert misled.usage == briefly.usage


def test_alone_and_among_seven_others_it_gets_the_same() -> None:
    jobs: list[dict[str, Any]] = [
        GRAMMARS["schema"],
        {"temperature": 0.9},
        GRAMMARS["regex"] | {"temperature": 0.9},
        {"presence_penalty": 1.0},
        GRAMMARS["lark"] | {"temperature": 1.3, "frequency_penalty": 0.5},
        {"verify_mode": "typical"},
        GRAMMARS["schema"] | {"temperature": 0.7, "logprobs": True},
        {"stop": " the"},
    ]

    async def main() -> tuple[list[Summary], list[Summary]]:
        async with serving(drafters=8) as (client, _):

            async def one(job: dict[str, Any]) -> Summary:
                stream = client.generate(PROMPT, num_draft_tokens=4, seed=3, max_tokens=60, **job)
                await stream.read()
                return stream.summary

            together = await asyncio.gather(*(one(job) for job in jobs))
            return together, [await one(job) for job in jobs]

    together, single = run_virtual(main())
    assert [run.token_ids for run in together] == [run.token_ids for run in single]
    assert obeys("schema", together[0].text)


# ------------------------------------------------------------------ tokenizers


def test_what_is_forced_is_spelt_as_the_tokenizer_would() -> None:
    grammar = Grammar(kind="regex", text="the cat")

    def first(compiler: GrammarCompiler) -> bytes:
        mask = compiler.compile(grammar).mask()
        assert mask is not None
        return b" ".join(PIECES[token] for token in mask.nonzero()[0])

    assert first(GrammarCompiler(PIECES)) == b"t"
    whole = GrammarCompiler(PIECES, lambda text: [0, *TOKENIZER.encode(text)])
    assert first(whole) == b"t"
    assert first(GrammarCompiler(PIECES, lambda _: [len(PIECES)])) == b"t"  # one that is broken
    # One that puts a space before every text, as some do, is not asked about its middle.
    spaced = GrammarCompiler(PIECES, lambda text: TOKENIZER.encode(" " + text))
    assert first(spaced) == first(GrammarCompiler(PIECES))


def test_the_compiler_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DraftwireError):
        read(regex="(")
    assert capfd.readouterr() == ("", "")


def test_the_command_takes_a_grammar(tmp_path: Path) -> None:
    file = tmp_path / "grammar"
    file.write_text('{"type": "null"}')
    for option, value, kind in (
        ("--json-schema", str(file), "json_schema"),
        ("--lark", str(file), "lark"),
        ("--regex", '{"type": "null"}', "regex"),
    ):
        arguments = build_parser().parse_args(["generate", "--json", option, value])
        grammar = options.settings(**sampling_options(arguments)).request.grammar
        assert grammar == Grammar(kind=kind, text='{"type": "null"}')
    chat = build_parser().parse_args(["chat"])
    assert options.settings(**sampling_options(chat)).request.grammar is None
