"""Captions from lines, words on display, what the model is asked, and what is held to."""

from __future__ import annotations

import io
from typing import Any

import pytest

from draftwire.errors import InvalidRequest
from draftwire.types import TokenLogprobs
from edge_client.arguments import build_parser
from edge_client.branch import Origin
from edge_client.results import Token
from edge_client.translation_command import Screen, captions
from edge_client.translation_display import Display, words_of
from edge_client.translation_prompt import TranslationPrompt, parse_glossary
from edge_client.translation_results import TranslationReport, TranslationUpdate
from edge_client.translation_stability import Stability, settled_tokens


def test_a_line_is_the_caption_and_an_empty_one_makes_it_final() -> None:
    assert list(captions([" a\n", "a b\n", "\n", "c"])) == [
        ("a", False),
        ("a b", False),
        ("", True),
        ("c", False),
    ]


def test_a_marker_at_its_end_makes_a_line_final() -> None:
    assert list(captions(["a b\n", "a b c <end>\n", "<end>\n", "d\n"], "<end>")) == [
        ("a b", False),
        ("a b c", True),
        ("", True),
        ("d", False),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("  un  deux\ttrois ", ["un", "  deux", "\ttrois"]),
        ("", []),
        ("今日は OK です", ["今", "日", "は", " OK", " で", "す"]),
    ],
)
def test_words_are_what_stands_between_spaces_and_each_character_where_there_are_none(
    text: str, words: list[str]
) -> None:
    assert words_of(text) == words
    assert "".join(words) == text.strip()


def shown_of(*texts: str, hold_back: int = 0) -> tuple[list[str], int]:
    """What is on display after each complete translation, the last one final; and the flicker."""
    display, seen = Display(hold_back), []
    for index, text in enumerate(texts, start=1):
        display.show(text, complete=True, final=index == len(texts))
        seen.append(display.text)
    return seen, display.taken_back


def test_flicker_counts_the_words_that_are_taken_back() -> None:
    seen, taken_back = shown_of("a b c", "a x c d", "a x c d", "a")
    assert seen == ["a b c", "a x c d", "a x c d", "a"]
    assert taken_back == 2 + 0 + 3


def test_the_last_words_are_held_back_until_they_are_final() -> None:
    seen, taken_back = shown_of("a b c", "a b x d", "a b x y", hold_back=2)
    assert seen == ["a", "a b", "a b x y"]
    assert taken_back == 0


def test_words_that_are_shown_stay_while_the_translation_begins_with_them() -> None:
    seen, taken_back = shown_of("a b c", "a b", "a z", hold_back=1)
    assert seen == ["a b", "a b", "a z"]
    assert taken_back == 1


def test_half_a_word_is_never_shown() -> None:
    display = Display()
    seen = []
    for text in ("", "he", "hello", "hello wor", "hello world"):
        display.show(text, complete=False)
        seen.append(display.text)
    assert seen == ["", "", "", "hello", "hello"]


def test_what_repeats_the_display_does_not_shorten_it() -> None:
    display = Display()
    display.show("a b c d", complete=True)
    assert not display.show("a b", complete=False)
    assert not display.show("a b c", complete=False)
    assert display.text == "a b c d"
    assert display.show("a x y", complete=False)
    assert display.text == "a x"
    assert display.taken_back == 3


def test_the_message_is_the_template_filled_in() -> None:
    prompt = TranslationPrompt(
        "FR", template="To {language}:\n{glossary}{context}{source} {not this}", context=1
    )
    assert prompt.message("a {context}") == "To French:\na {context} {not this}"
    message = prompt.message("b", [("a", "un")])
    assert message == "To French:\nWhat was said before, for context only:\na = un\nb {not this}"


def test_terms_are_told_where_they_occur() -> None:
    prompt = TranslationPrompt(
        "Klingon", template="{language} {glossary}{source}", glossary={"Ship": "duj", "ip": "x"}
    )
    assert prompt.message("The ship.") == "Klingon Use these terms:\nShip = duj\nThe ship."
    assert prompt.message("The shipyard") == "Klingon The shipyard"


def test_a_glossary_is_a_term_a_line() -> None:
    text = "# ours\n\nharbour = port\nold\tvieux = ancien\n"
    assert parse_glossary(text) == {"harbour": "port", "old": "vieux = ancien"}
    for line in ("harbour", "= port", "harbour ="):
        with pytest.raises(InvalidRequest, match="line 2"):
            parse_glossary(f"a = b\n{line}\n")


def token(id: int, logprob: float, **others: float) -> Token:  # noqa: A002
    told = TokenLogprobs(
        logprob=logprob,
        top_tokens=tuple(int(name[1:]) for name in others),
        top_logprobs=tuple(others.values()),
    )
    return Token(id, "", Origin.CLOUD, told)


@pytest.mark.parametrize(
    ("bonus", "kept", "held"),
    [(1.0, 0, True), (0.4, 0, False), (0.0, 0, False), (1.0, 1, False), (1.0, 2, False)],
)
def test_a_token_is_held_to_where_the_target_prefers_another_by_less_than_the_bonus(
    bonus: float, kept: int, held: bool
) -> None:
    """At 0.5 nats; its own at 1, and nothing at the end of what was there before."""
    assert Stability(bonus).holds(kept, token(5, -0.5, t5=-0.5, t7=-1.0), [7, 5]) == held


def test_a_token_that_is_not_among_the_likeliest_is_never_held_to() -> None:
    assert not Stability(1e9).holds(0, token(5, -0.5, t5=-0.5), [7])


class Letters:
    def piece(self, token: int) -> bytes:
        return chr(token).encode()


@pytest.mark.parametrize(("hold_back", "text"), [(0, "ab cd"), (1, "ab cd"), (2, "ab"), (9, "")])
def test_the_last_word_is_not_held_to(hold_back: int, text: str) -> None:
    tokens = list(map(ord, "ab cd ef"))
    assert settled_tokens(tokens, Letters(), hold_back) == list(map(ord, text))


def event(text: str, **changes: Any) -> TranslationUpdate:
    values: dict[str, Any] = {
        "source": "s",
        "text": text,
        "translation": text,
        "token_ids": (1,),
        "settled": True,
        "final": False,
        "passes": 1,
        "lag_ms": 1.0,
    }
    return TranslationUpdate(**values | changes)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminals_line_is_rewritten_as_far_as_it_fits() -> None:
    out = Terminal()
    screen = Screen(out, columns=8)
    for shown in (event("un deux"), event("un deux trois"), event("un deux trois.", final=True)):
        screen.show(shown)
    assert out.getvalue().split("\r\x1b[2K")[1:] == ["un deux", "… trois", "un deux trois.\n"]


def test_elsewhere_only_final_lines_are_printed() -> None:
    out = io.StringIO()
    for shown in (event("un"), event("un deux", final=True)):
        Screen(out).show(shown)
    assert out.getvalue() == "un deux\n"


def test_the_report_relates_what_it_counts() -> None:
    report = TranslationReport(
        updates=4,
        superseded=1,
        lines=2,
        words=10,
        taken_back=5,
        passes=9,
        tokens=30,
        lags_ms=(10.0, 20.0, 60.0),
        lossy=True,
    )
    assert (report.flicker, report.passes_per_update, report.lag_ms) == (0.5, 3.0, 30.0)
    assert report.line().endswith("lossy")
    assert "at most 60" in report.line()


def test_a_translation_needs_a_language() -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["translate"])
    assert build_parser().parse_args(["translate", "--to", "fr"]).context_lines == 0
