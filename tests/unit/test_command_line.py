"""What a command line that is wrong is told."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pytest

from cloud_verifier.cli import build_parser as verifier_parser
from edge_client.arguments import build_parser as device_parser


def told(capsys: pytest.CaptureFixture[str], line: str) -> list[str]:
    """The lines on stderr of a command that ends by its wrong arguments."""
    command, *arguments = line.split()
    parser = device_parser() if command == "draftwire" else verifier_parser()
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(arguments)
    assert ended.value.code == 2
    out, said = capsys.readouterr()
    assert out == ""
    return said.splitlines()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("draftwire generate --top-k many", "--top-k: 'many' is not a whole number"),
        ("draftwire generate --top-p much", "--top-p: 'much' is not a number"),
        ("draftwire demo --repeat x", "--repeat: 'x' is not a whole number"),
        ("draftwire demo --rtt -1", "--rtt: -1 is not a number from 0 on"),
        ("draftwire demo --drafter noisy:x", "--drafter: 'x' is not a number"),
        ("draftwire translate", "missing: --to"),
        ("draftwire generate --topk 3", "there is no option --topk; did you mean --top-k?"),
        ("draftwire generate --xyzzy=3 hello", "there is no option --xyzzy"),
        (
            "draftwire generate why is it blue",
            "too much: is it blue (a text with spaces goes in quotes)",
        ),
        ("draftwire models inspect", "missing: MODEL|HOST:PORT"),
        ("draftwire generate --lark gone", "--lark: gone can't be read: No such file or directory"),
        ("draftwire generate --api-key-file /", "--api-key-file: / can't be read: Is a directory"),
        ("draftwire chat --ca gone", "--ca: gone can't be read: No such file or directory"),
        ("draftwire-verifier serve", "missing: --model"),
        ("draftwire-verifier serve --model x --max-sessions 0", "--max-sessions: 0 is not"),
    ],
)
def test_a_wrong_argument_is_told_in_two_lines(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said, see = told(capsys, line)
    command = said.partition(":")[0]
    assert line.startswith(f"{command} ") or line == command
    assert said.startswith(f"{command}: {message}")
    assert see == f"see `{command} --help`"


@pytest.mark.parametrize("line", ["draftwire", "draftwire-verifier", "draftwire shout"])
def test_no_command_or_an_unknown_one_leads_to_the_list(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = line.partition(" ")[0]
    said, see = told(capsys, line)
    assert said.startswith(f"{command}: ")
    assert "COMMAND" in said
    assert see == f"see `{command} --help`"


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                yield from parsers(one)


def test_help_is_wrapped_to_the_terminal_and_its_examples_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    for one in (*parsers(device_parser()), *parsers(verifier_parser())):
        told = one.format_help()
        examples = [line for line in (one.epilog or "").splitlines() if line.startswith("  ")]
        assert set(examples) <= set(told.splitlines())
        prose = told.removeprefix(one.format_usage()).splitlines()
        words = [line for line in prose if line not in examples and " " in line.strip()]
        assert [line for line in words if len(line) > 60 and not line.startswith("  -")] == []
