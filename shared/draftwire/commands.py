"""What the command lines of both sides have in common."""

from __future__ import annotations

import argparse
import math


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Adds the default to an option's help, where there is one and the help does not say it."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        unset = action.default is None or action.default is False
        if unset or "default" in (action.help or ""):
            return action.help
        return super()._get_help_string(action)


def positive(text: str) -> int:
    """An argument that counts something there must be at least one of."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def not_negative(text: str) -> float:
    """An argument that is a duration or a size."""
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 on")
    return value


def seconds(text: str) -> float:
    """An argument that is a time limit."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return value
