"""A terminal shows, at every moment, the text that the deltas so far add up to."""

from __future__ import annotations

import io
import random
import re
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from edge_client.branch import Origin
from edge_client.results import Delta, Kind, Token
from edge_client.screen import Screen
from edge_client.tentative import Shown, Tentative

WORDS = ["the ", "cat", " sat on\n", "語", "🚀!", "x" * 11, "", "a\n\n", "é"]
SEQUENCE = re.compile(r"\x1b\[(\d*)([A-Za-z])|\x1b\[[\d;]*m", re.ASCII)


class Terminal:
    """What a terminal makes of what is written to it: rows of cells, and no more of colours."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.rows: list[list[str]] = [[]]
        self.row = self.column = 0

    def write(self, data: str) -> None:
        while data:
            if sequence := SEQUENCE.match(data):
                self.control(int(sequence[1] or 1), sequence[2])
                data = data[sequence.end() :]
            else:
                self.put(data[0])
                data = data[1:]

    def control(self, count: int, what: str | None) -> None:
        if what == "A":
            self.row -= count
            assert self.row >= 0
        elif what == "C":
            self.column += count
        elif what == "J":
            del self.rows[self.row + 1 :]
            del self.rows[self.row][self.column :]
        else:
            assert what in (None, "m")

    def put(self, character: str) -> None:
        if character == "\n":
            self.row, self.column = self.row + 1, 0
        elif character == "\r":
            self.column = 0
        else:
            cells = cell_len(character)
            if self.column + cells > self.width:
                self.row, self.column = self.row + 1, 0
            self.line()[self.column : self.column + cells] = [character] + [""] * (cells - 1)
            self.column += cells
        self.line()

    def line(self) -> list[str]:
        while len(self.rows) <= self.row:
            self.rows.append([])
        line = self.rows[self.row]
        line += [" "] * (self.column - len(line))
        return line

    @property
    def text(self) -> list[str]:
        """Its rows, without what can't be seen."""
        lines = ["".join(line).rstrip() for line in self.rows]
        while lines and not lines[-1]:
            lines.pop()
        return lines


def token(word: str) -> Token:
    return Token(WORDS.index(word), word, Origin.DRAFT)


def random_deltas(rng: random.Random) -> list[Delta]:
    """Drafts that come, hold, and are retracted."""
    tentative, tail, deltas = Tentative(), [], []
    for _ in range(30):
        given: list[Token] = []
        act = rng.choice(["draft", "draft", "hold", "reject"])
        if act == "draft":
            tail = [*tail, token(rng.choice(WORDS))]
        elif act == "hold":
            count = rng.randint(0, len(tail))
            given, tail = tail[:count], tail[count:]
        else:
            given, tail = [token(rng.choice(WORDS))], []
        given = [replace(one, origin=Origin.ACCEPTED) for one in given]
        text = "".join(one.text for one in given)
        kind = rng.choice([Kind.DRAFTED, Kind.UNVERIFIED])
        deltas += tentative.change(Delta(text, tuple(given)), tail, kind)
    return deltas


@pytest.mark.parametrize("seed", range(40))
def test_a_terminal_shows_what_there_is_and_nothing_else(seed: int) -> None:
    rng = random.Random(seed)
    width = rng.choice([11, 12, 40])
    file, terminal, shown = io.StringIO(), Terminal(width), Shown()
    screen = Screen(Console(file=file, force_terminal=True, width=width, height=1000))
    for delta in random_deltas(rng):
        screen.show(delta)
        terminal.write(file.getvalue())
        file.truncate(file.seek(0))
        shown.apply(delta)
        expected = Terminal(width)
        expected.write(shown.text)
        assert terminal.text == expected.text


def test_where_there_is_no_terminal_only_final_text_goes() -> None:
    deltas = random_deltas(random.Random(1))
    file, shown = io.StringIO(), Shown()
    screen = Screen(Console(file=file, force_terminal=False))
    for delta in deltas:
        screen.show(delta)
        shown.apply(delta)
    assert file.getvalue() == shown.final


def test_no_more_is_shown_than_can_be_taken_back() -> None:
    file = io.StringIO()
    screen = Screen(Console(file=file, force_terminal=True, width=20, height=6))
    lines = tuple(Token(i, f"{i}\n", Origin.DRAFT) for i in range(9))
    screen.show(Delta("".join(line.text for line in lines), lines, Kind.UNVERIFIED))
    assert file.getvalue().count("\n") == 4
    final = tuple(replace(line, origin=Origin.CLOUD) for line in lines)
    screen.show(Delta("".join(line.text for line in final), final))
    assert "\x1b[4A" in file.getvalue()
