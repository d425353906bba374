"""Writes docs/cli.md from both commands' parsers; with --check, fails where it is not current.

The tables are made from the parsers and not from the text of --help, whose layout differs from one
Python version to the next.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from cloud_verifier.cli import build_parser as verifier_parser
from edge_client.arguments import build_parser as device_parser

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"


def main() -> int:
    parser = argparse.ArgumentParser(description="Write docs/cli.md from the commands' parsers.")
    parser.add_argument("--check", action="store_true", help="only compare")
    check = parser.parse_args().check
    page = "\n".join(lines()) + "\n"
    if not check:
        PAGE.write_text(page, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page:
        print("docs/cli.md is not what the commands' help says: run `make docs`")
        return 1
    return 0


def lines() -> Iterator[str]:
    yield "# Commands"
    yield ""
    yield "Generated from the commands' own help by `make docs`."
    for parser in (device_parser(), verifier_parser()):
        yield from command(parser, parser.description)


def command(parser: argparse.ArgumentParser, about: str | None) -> Iterator[str]:
    """The section of a command and, after it, those of its subcommands."""
    level = "##" if " " not in parser.prog else "###"
    yield from ("", f"{level} {parser.prog}")
    if about:
        yield from ("", about)
    rows = [row(parser, action) for action in parser._actions if is_documented(action)]
    if rows:
        yield from ("", "| | default | |", "|---|---|---|", *rows)
    if parser.epilog:
        yield from ("", "```", parser.epilog.rstrip(), "```")
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            summaries = {choice.dest: choice.help for choice in action._choices_actions}
            for name, subparser in action.choices.items():
                yield from command(subparser, subparser.description or summaries.get(name))


def is_documented(action: argparse.Action) -> bool:
    hidden = (argparse._HelpAction, argparse._SubParsersAction)
    return not isinstance(action, hidden) and action.help != argparse.SUPPRESS


def row(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    value = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    if action.choices and not action.metavar:
        value = "{" + ",".join(str(choice) for choice in action.choices) + "}"
    names = ", ".join(action.option_strings)
    if not names:
        names = value
    elif action.nargs != 0:
        names = f"{names} {value}"
    unset = action.default is None or action.default is False or action.default == argparse.SUPPRESS
    default = "" if unset else f"`{action.default}`"
    meaning = (action.help or "") % (vars(action) | {"prog": parser.prog})
    return "| " + " | ".join(escape(cell) for cell in (f"`{names}`", default, meaning)) + " |"


def escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    sys.exit(main())
