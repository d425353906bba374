"""`draftwire translate`: captions on stdin, their translation on stdout."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TextIO

from rich.cells import cell_len
from rich.console import Console

from draftwire.printable import printable
from edge_client.console import remark
from edge_client.translation_prompt import parse_glossary
from edge_client.translation_results import TranslationUpdate

if TYPE_CHECKING:
    from edge_client.sync import EdgeClient


def captions(lines: Iterable[str], marker: str | None = None) -> Iterator[tuple[str, bool]]:
    """Captions from lines of input, and whether they are final.

    An empty caption that is final makes the one before it so.
    """
    for line in lines:
        text = line.strip()
        final = not text or bool(marker and text.endswith(marker))
        yield (text.removesuffix(marker).strip() if marker else text), final


def run(client: EdgeClient, arguments: argparse.Namespace) -> int:
    """Translate stdin; returns the exit status."""
    options: dict[str, Any] = {
        "context": arguments.context_lines,
        "hold_back": arguments.hold_back,
        "stability": arguments.stability,
        "max_tokens": arguments.max_tokens,
        "num_draft_tokens": arguments.num_draft_tokens,
    }
    if arguments.template is not None:
        options["template"] = arguments.template.rstrip("\n")
    if arguments.glossary is not None:
        options["glossary"] = parse_glossary(arguments.glossary)
    screen = Screen(sys.stdout, as_json=arguments.json)
    with client.translate(arguments.to, shown=screen.show, **options) as translator:
        for text, final in captions(sys.stdin, arguments.final_marker):
            translator.update(text)
            if final:
                translator.commit()
        translator.commit()
        translator.settled()
        remark(Console(stderr=True), translator.report.line())
    return 0


class Screen:
    """Where translations are shown: a terminal whose last line is rewritten, or a file."""

    def __init__(self, out: TextIO, *, as_json: bool = False, columns: int | None = None) -> None:
        self._out = out
        self._as_json = as_json
        self._rewrites = out.isatty() and not as_json
        self._columns = columns or Console(file=out).width

    def show(self, shown: TranslationUpdate) -> None:
        """Show a change."""
        if self._as_json:
            self._write(json.dumps(asdict(shown), ensure_ascii=False) + "\n")
        elif self._rewrites:
            text = printable(shown.text)
            text = text + "\n" if shown.final else self._tail(text)
            self._write(f"\r\x1b[2K{text}")
        elif shown.final:
            self._write(shown.text + "\n")

    def _tail(self, text: str) -> str:
        """As much of the end as fits in a line: one that wraps could not be rewritten."""
        room = self._columns - 1
        if cell_len(text) <= room:
            return text
        while cell_len(text) > room - 1:
            text = text[1:]
        return "…" + text

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
