"""What a terminal shows, and what goes where there is none."""

from __future__ import annotations

import io
import json
import re

import pytest
from rich.console import Console

from draftwire.types import FinishReason, Usage
from edge_client.branch import Origin
from edge_client.console import as_json, closing_line, remark, show
from edge_client.results import Delta, Kind, Summary, Token
from edge_client.screen import Screen
from edge_client.transport import WireBytes

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")

DELTAS = [
    Delta(
        "The [bold]sky[/bold]",
        (Token(1, "The ", Origin.CLOUD), Token(2, "[bold]sky[/bold]", Origin.ACCEPTED)),
    ),
    Delta(
        " is :smile:\n\n",
        (Token(3, " is", Origin.CORRECTED), Token(4, " :smile:\n\n", Origin.ACCEPTED)),
    ),
    Delta("", (Token(5, "", Origin.ACCEPTED),)),
    Delta(
        "   https://example.net 'blue' 42  ",
        (Token(6, "   https://example.net 'blue' 42  ", Origin.ACCEPTED),),
    ),
    Delta("你好 🙂 " + "long " * 40, (Token(7, "你好 🙂 " + "long " * 40, Origin.CLOUD),)),
    Delta("\ufffd", ()),
]
TEXT = "".join(delta.text for delta in DELTAS)


HOSTILE = "a\x1b[2J\x1b]52;c;ZXZpbA==\x07b\x9b1mc\rd\x08\x7f\x85\te\n"


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("whole", [True, False], ids=["in a token", "beside tokens"])
def test_a_terminal_is_given_nothing_of_a_text_that_it_would_obey(kind: Kind, whole: bool) -> None:
    tokens = (Token(1, HOSTILE if whole else "", Origin.ACCEPTED),)
    file = io.StringIO()
    screen = Screen(Console(file=file, force_terminal=True, color_system=None, width=60))
    screen.show(Delta(HOSTILE, tokens, kind))
    written = file.getvalue().replace("\x1b[0m", "")
    assert not set(written) & {*map(chr, range(0x80, 0xA0)), *"\x07\x08\r\x1b\x7f"}
    if kind is Kind.COMMITTED:
        assert "a␛[2J␛]52;c;ZXZpbA==␇b\ufffd1mc␍d␈␡\ufffd" in written


def test_but_a_pipe_gets_it_byte_for_byte() -> None:
    file = io.StringIO()
    show(Console(file=file, force_terminal=False), Delta(HOSTILE, ()))
    assert file.getvalue() == HOSTILE


def test_a_terminal_shows_what_follows_the_last_token_too() -> None:
    """What stands before a stop string in the token where that begins."""
    file = io.StringIO()
    screen = Screen(Console(file=file, force_terminal=True, color_system=None, width=60))
    screen.show(Delta("one two", (Token(1, "one ", Origin.ACCEPTED),)))
    assert file.getvalue() == "one two"


def summary(**changes: object) -> Summary:
    values: dict[str, object] = {
        "text": 'Hi 你 "quoted"',
        "token_ids": (1, 2, 3, 4),
        "finish_reason": FinishReason.LENGTH,
        "seed": 2**64 - 1,
        "rounds": 2,
        "drafted": 3,
        "accepted": 2,
        "alpha": 2 / 3,
        "tau": 2.0,
        "k_mean": 1.5,
        "ttft_ms": 12.345,
        "tpot_ms": 6.789,
        "duration_ms": 32.7,
        "rtt_ms": 20.04,
        "streams": 1,
        "bytes": WireBytes(drafts_up=10, verdicts_down=20, other_up=100, other_down=200),
        "usage": Usage(),
    }
    return Summary(**(values | changes))  # type: ignore[arg-type]


def shown(**options: object) -> str:
    file = io.StringIO()
    console = Console(file=file, **options)  # type: ignore[arg-type]
    for delta in DELTAS:
        show(console, delta)
    return file.getvalue()


def test_where_there_is_no_terminal_the_text_goes_as_it_is() -> None:
    assert shown(force_terminal=False, width=20) == TEXT


@pytest.mark.parametrize("width", [5, 20, 200])
def test_a_terminal_gets_the_same_text_unwrapped_and_in_colour(width: int) -> None:
    output = shown(force_terminal=True, color_system="standard", width=width)
    assert ESCAPE.sub("", output) == TEXT
    assert "\x1b[32m[bold]sky[/bold]\x1b[0m" in output  # drafted: green, and markup is text
    assert re.search(r"\x1b\[[0-9;]*4[0-9;]*m is\x1b\[0m", output)  # corrected: underlined
    assert "\x1b[" not in output.split("The ")[0]  # the target's own: plain


def test_no_color_means_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    output = shown(force_terminal=True, color_system="standard", width=80)
    assert ESCAPE.sub("", output) == TEXT
    assert not re.search(r"\x1b\[[0-9;]*3[0-7][0-9;]*m", output)


def test_the_closing_line_tells_how_it_went() -> None:
    assert closing_line(summary()) == (
        "4 tokens, 122.3/s · τ 2.00 · α 0.67 · K 1.5 · TTFT 12 ms · TPOT 6.8 ms · RTT 20.0 ms · "
        "110 B up, 220 B down · length"
    )


def test_without_drafts_it_claims_nothing_of_them() -> None:
    line = closing_line(summary(drafted=0, accepted=0, alpha=0.0, k_mean=0.0))
    assert "α" not in line
    assert "K " not in line


def test_a_remark_is_one_line_however_narrow_the_terminal() -> None:
    file = io.StringIO()
    remark(Console(file=file, width=10, force_terminal=False), "a [long] remark " * 20)
    assert file.getvalue() == "a [long] remark " * 20 + "\n"


def test_the_json_holds_the_summary() -> None:
    report = json.loads(json.dumps(as_json(summary()), ensure_ascii=False))
    assert report["text"] == 'Hi 你 "quoted"'
    assert report["token_ids"] == [1, 2, 3, 4]
    assert report["finish_reason"] == "length"
    assert report["seed"] == 2**64 - 1
    assert (report["rounds"], report["drafted"], report["accepted"]) == (2, 3, 2)
    assert (report["alpha"], report["tau"], report["k_mean"]) == (0.6667, 2.0, 1.5)
    assert (report["ttft_ms"], report["tpot_ms"], report["rtt_ms"]) == (12.35, 6.789, 20.04)
    assert report["tokens_per_s"] == 122.324
    assert (report["bytes_up"], report["bytes_down"]) == (110, 220)
    assert report["payload_bytes_per_token"] == 7.5


def test_a_summary_of_nothing_has_no_speed() -> None:
    assert summary(token_ids=(), duration_ms=0.0).tokens_per_s == 0
    assert as_json(summary(token_ids=(), duration_ms=0.0))["payload_bytes_per_token"] == 30
