"""An answer as it comes, for whoever reads stdout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from draftwire.errors import DraftwireError
from edge_client.console import closing_line, remark
from edge_client.screen import Screen

if TYPE_CHECKING:
    from edge_client.sync import Stream


def show_answer(stream: Stream) -> None:
    """Stream the text to stdout and the closing line to stderr."""
    console = Console()
    screen = Screen(console)
    try:
        for delta in stream:
            screen.show(delta)
    except DraftwireError:
        if console.is_terminal and stream.shown.text:
            print(flush=True)  # what is said of it begins a line
        raise
    print(flush=True)
    remark(Console(stderr=True), closing_line(stream.summary))
