"""A client described in a TOML file. Its keys are the long options of `draftwire generate`::

    verifier = "gpu.example.net:7433"
    model = "models/draft.gguf"
    api-key-file = "key"
    max-tokens = 400
    stop = ["\\n\\n"]

The options are read by the commands' own parser, so that a value means the same in both. Paths are
relative to the file.
"""

from __future__ import annotations

import argparse
import difflib
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from draftwire.errors import InvalidRequest
from draftwire.reason import reason
from edge_client.arguments import add_client_options
from edge_client.client_arguments import client_options
from edge_client.generation_arguments import sampling_options
from edge_client.options import Options, settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """`client` are arguments of `AsyncEdgeClient.from_model`, `generation` options of all texts."""

    client: Mapping[str, Any]
    generation: Options


def read_config(path: str | Path) -> Config:
    """Read a file. Raises `InvalidRequest`, which names the key that is unknown or wrong."""
    path = Path(path)
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidRequest(
            f"{path} can't be read: {reason(error)}", remedy="give a TOML file"
        ) from error
    parser = _Parser(add_help=False, allow_abbrev=False)
    add_client_options(parser)
    try:
        arguments = parser.parse_args(list(_as_options(values, parser, path.parent)))
        generation: Options = sampling_options(arguments)  # type: ignore[assignment]
        settings(**generation)
        return Config(client=client_options(arguments), generation=generation)
    except InvalidRequest as error:
        raise InvalidRequest(f"{path}: {error.message}", remedy=error.remedy) from error


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Raise instead of ending the process."""
        raise InvalidRequest(message.removeprefix("argument --"), remedy="see docs/cli.md")


def _as_options(
    values: Mapping[str, Any], parser: argparse.ArgumentParser, folder: Path
) -> Iterator[str]:
    """The command line that says the same."""
    actions = {
        option.removeprefix("--"): action
        for action in parser._actions
        for option in action.option_strings
    }
    for key, value in values.items():
        action = actions.get(key)
        if action is None:
            raise _unknown(key, list(actions))
        if action.nargs == 0:
            if not isinstance(value, bool):
                raise InvalidRequest(f"{key} is {value!r}, not true or false")
            yield from [f"--{key}"] * value
            continue
        several = isinstance(value, list) and isinstance(action, argparse._AppendAction)
        for one in value if several else [value]:
            if isinstance(one, bool) or not isinstance(one, str | int | float):
                raise InvalidRequest(f"{key} is {one!r}, not text or a number")
            is_path = str(action.metavar).startswith("FILE")
            yield f"--{key}={folder / _at_home(key, str(one)) if is_path else one}"


def _at_home(key: str, path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise InvalidRequest(f"{key} is {path!r}, and there is no such home") from None


def _unknown(key: str, known: list[str]) -> InvalidRequest:
    near = difflib.get_close_matches(key.replace("_", "-"), known, 1)
    remedy = f"did you mean {near[0]}?" if near else f"use some of {', '.join(sorted(known))}"
    return InvalidRequest(f"{key} is no key", remedy=remedy)
