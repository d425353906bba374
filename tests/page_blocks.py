"""The code blocks of a page, and a runner that does what a reader would do with them.

Blocks of `python` and `sh` are run, one after the other, those of Python in one interpreter. A
block of `text` is what the one before it prints. A line `<!-- not run: REASON -->` before a block
says that it is not run, or not compared, and why.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from edge_client.verifier_process import VerifierProcess

SERVE = "draftwire-verifier serve "
ADDRESS = "127.0.0.1:7433"

_FENCE = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^>]+?) -->\n)?```(?P<language>\w*)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block of a page; `reason` is why it isn't run, empty if it is. `line` counts from 1."""

    page: Path
    line: int
    language: str
    code: str
    reason: str

    @property
    def place(self) -> str:
        """Page and line."""
        return f"{self.page.name}:{self.line}"

    def commands(self) -> list[list[str]]:
        """The words of each of our own commands in a shell block."""
        text = self.code.replace("\\\n", " ")
        lines = [re.split(r"\s[|&]\s|>>?\s|#", part)[0] for part in re.split(r"\n| \| ", text)]
        words = [shlex.split(re.sub(r"^\w+=\S+ ", "", line.strip())) for line in lines]
        return [line for line in words if line and line[0] in ("draftwire", "draftwire-verifier")]


def blocks(page: Path) -> list[Block]:
    """All blocks of a page."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            page=page,
            line=text.count("\n", 0, found.start("code")),
            language=found["language"],
            code=found["code"],
            reason=found["reason"] or "",
        )
        for found in _FENCE.finditer(text)
    ]


class Reader:
    """Does what a page says, in a folder of its own and against a verifier of its own.

    Where the page starts one, it is started, on a free port; from then on the address that pages
    name stands for its own. Leaving stops it.
    """

    def __init__(self, folder: Path, address: str = ADDRESS) -> None:
        self._folder = folder
        self._address = address
        self._names: dict[str, Any] = {"__name__": "__page__"}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(contextlib.chdir(self._folder))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def read(self, page: Path) -> None:
        """Run a page's blocks in their order. Raises `AssertionError` where one fails."""
        printed = ""
        for block in blocks(page):
            if block.reason:
                continue
            if block.language == "text":
                assert printed == block.code, f"{block.place} is not what was printed: {printed}"
                continue
            if block.code.startswith(SERVE):
                self._serve(shlex.split(block.code)[2:])
                continue
            run = {"python": self._python, "sh": self._shell}[block.language]
            printed = run(block)

    def _serve(self, arguments: list[str]) -> None:
        few = ["--threads", "1", "--kv-tokens", "8192"]
        process = self._stack.enter_context(VerifierProcess([*arguments, *few]))
        self._address = process.address

    def _python(self, block: Block) -> str:
        code = block.code.replace(ADDRESS, self._address)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(code, block.place, "exec"), self._names)  # noqa: S102
        return out.getvalue()

    def _shell(self, block: Block) -> str:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.code.replace(ADDRESS, self._address)],
            env=os.environ | {"PATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, f"{block.place}: {done.stderr}"
        return done.stdout
