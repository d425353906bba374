"""How both commands read their command line: parser, help texts and values."""

from __future__ import annotations

import argparse
import difflib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from draftwire.reason import reason


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Adds an option's default to its help, where there is one and the help does not say it.

    Descriptions are wrapped to the terminal's width; paragraphs with examples stay as they are.
    """

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.strip().split("\n\n")
        return "\n\n".join(
            one if "\n  " in one else super(HelpFormatter, self)._fill_text(one, width, indent)
            for one in paragraphs
        )

    def _get_help_string(self, action: argparse.Action) -> str | None:
        unset = action.default is False or action.default in (None, "", [])
        if unset or "default" in (action.help or ""):
            return action.help
        return super()._get_help_string(action)


class Parser(argparse.ArgumentParser):
    """Says in two lines what is wrong with a command line, and where its help is.

    Its subcommands' parsers do so too: `add_subparsers` makes them of the same class.
    """

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse, and end the process where something is left over.

        The parser of a subcommand does so itself, and so names its own help.
        """
        known, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(self._unknown(rest))
        return known, rest

    def error(self, message: str) -> NoReturn:
        """End the process with status 2, by the message and one line more."""
        message = message.removeprefix("argument ")
        message = message.replace("the following arguments are required:", "missing:")
        self.exit(2, f"{self.prog}: {message}\nsee `{self.prog} --help`\n")

    def _unknown(self, rest: Sequence[str]) -> str:
        """What to say of arguments that nothing takes."""
        for one in rest:
            if one.startswith("-"):
                name = one.partition("=")[0]
                near = difflib.get_close_matches(name, self._option_string_actions, 1)
                return f"there is no option {name}" + (f"; did you mean {near[0]}?" if near else "")
        return f"too much: {' '.join(rest)} (a text with spaces goes in quotes)"


def content(path: str) -> str:
    """An argument that is given as a file that holds it."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{path} can't be read: {reason(error)}") from None


def readable(path: str) -> str:
    """An argument that is a file to be read later, which is there."""
    try:
        Path(path).open("rb").close()
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{path} can't be read: {reason(error)}") from None
    return path


def whole(text: str) -> int:
    """An argument that is a whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def number(text: str) -> float:
    """An argument that is a number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def positive(text: str) -> int:
    """An argument that counts something there must be at least one of."""
    value = whole(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def not_negative(text: str) -> float:
    """An argument that is a duration or a size."""
    value = number(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 on")
    return value


def seconds(text: str) -> float:
    """An argument that is a time limit."""
    value = number(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return value
