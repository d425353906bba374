"""A terminal on which the end of the text is not final yet."""

from __future__ import annotations

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from edge_client.console import on_screen, show
from edge_client.results import Delta, Kind

TENTATIVE = {Kind.DRAFTED: "dim", Kind.UNVERIFIED: "dim italic"}


class Screen:
    """Writes deltas where the cursor is, and takes back there what was tentative.

    Where that is no terminal only final text goes, byte for byte. Of tentative text no more is
    shown than the screen has rows for: what has scrolled away can't be taken back.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._moves = console.is_terminal and not console.is_dumb_terminal
        self._column = 0  # where the final text ends
        self._rows = 0  # that the tentative text goes on below that
        self._tentative: list[tuple[str, str]] = []  # each token's text and style

    def show(self, delta: Delta) -> None:
        """Write a delta."""
        count = len(delta.tokens)
        if not self._moves:
            if delta.kind is Kind.COMMITTED:
                show(self._console, delta)
            return
        self._erase()
        if delta.kind is Kind.COMMITTED:
            del self._tentative[:count]
            show(self._console, delta)
            written = Text(on_screen(delta.text))
            written.expand_tabs()  # as `show` does
            _, self._column = self._after(self._column, written.plain)
        elif delta.kind is Kind.RETRACTED:
            del self._tentative[len(self._tentative) - count :]
        else:
            style = TENTATIVE[delta.kind]
            self._tentative += [
                (on_screen(token.text).replace("\t", " "), style) for token in delta.tokens
            ]
        if self._tentative:
            self._draw()

    def _draw(self) -> None:
        if self._column == self._console.width:
            # A terminal wraps when the next character comes, and no movement undoes that. The
            # price: a line that ends just there is followed by an empty one.
            self._console.file.write(" \r")
            self._column = 0
        column, shown = self._column, []
        for text, style in self._tentative:
            rows, column = self._after(column, text)
            if self._rows + rows > self._console.height - 2:
                break
            self._rows += rows
            shown.append((text, style))
        self._console.print(Text.assemble(*shown), end="", soft_wrap=True, highlight=False)
        self._console.file.flush()

    def _erase(self) -> None:
        if self._tentative:
            up = f"\x1b[{self._rows}A" if self._rows else ""
            right = f"\x1b[{self._column}C" if self._column else ""
            self._console.file.write(f"{up}\r{right}\x1b[J")
        self._rows = 0

    def _after(self, column: int, text: str) -> tuple[int, int]:
        """Rows down and the column where the cursor is after a text that begins in `column`."""
        rows, width = 0, self._console.width
        for character in text:
            if character == "\n":
                rows, column = rows + 1, 0
            elif column + (cells := cell_len(character)) > width:
                rows, column = rows + 1, cells
            else:
                column += cells
        return rows, column
