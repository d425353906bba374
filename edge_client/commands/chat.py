"""`draftwire chat`: questions from stdin, answers on stdout, until there are no more."""

from __future__ import annotations

import argparse
import contextlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from draftwire.errors import Unavailable
from draftwire.printable import printable
from edge_client.commands.answer import show_answer
from edge_client.generation_arguments import sampling_options

if TYPE_CHECKING:
    from edge_client.sync import EdgeClient

PROMPT = "› "
HINT = "(Ctrl-D or /quit ends)"


def run(client: EdgeClient, arguments: argparse.Namespace) -> int:
    """Talk until the user ends it; returns the exit status."""
    chat = client.chat(arguments.system)
    questions = _Questions()
    while (line := questions.next()) is not None:
        try:
            with chat.send(line, **sampling_options(arguments)) as stream:
                show_answer(stream)
        except KeyboardInterrupt:
            print("\n(stopped)", file=sys.stderr)
        except Unavailable as error:
            if not questions.typed:
                raise
            print(printable(f"draftwire: {error.code}: {error}"), file=sys.stderr)
    return 0


class _Questions:
    """What the user asks, line by line; `typed` says whether somebody sits at a terminal."""

    def __init__(self) -> None:
        self.typed = sys.stdin.isatty()
        self._on_screen = self.typed and sys.stdout.isatty()
        self._editor = _editor() if self._on_screen else None

    def next(self) -> str | None:
        """The next that is not empty, None when there are no more.

        Raises `KeyboardInterrupt` for Ctrl-C at an empty prompt, twice in a row: at any other the
        line is dropped. Where nobody types, the first ends it.
        """
        interrupted = False
        while True:
            try:
                line = self._read()
            except EOFError:
                if self.typed:
                    print(file=sys.stderr)
                return None
            except KeyboardInterrupt:
                if not self.typed or (interrupted and not self._begun()):
                    raise
                print(f"\n{HINT}", file=sys.stderr)
                interrupted = True
                continue
            if line.strip():
                return None if line.strip() == "/quit" else line
            interrupted = False

    def _read(self) -> str:
        if self.typed and not self._on_screen:
            # Not for whoever reads stdout; nor may `input` write it there.
            print(PROMPT, end="", file=sys.stderr, flush=True)
        return input(PROMPT if self._on_screen else "")

    def _begun(self) -> bool:
        """Whether there was something on the line that was interrupted, as far as can be known."""
        return self._editor is not None and bool(self._editor.get_line_buffer())


def _editor() -> ModuleType | None:
    """Python's readline, which `input` edits lines with as soon as it is there."""
    with contextlib.suppress(ImportError):  # not on every system
        import readline

        return readline
    return None
