"""The arguments of `draftwire translate`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from draftwire.command_line import HelpFormatter, number, positive, whole
from edge_client.translation_prompt import DEFAULT_TEMPLATE

_DESCRIPTION = """\
Translate live captions as they grow. Each line of stdin is the caption as it is now and takes the
place of the line before; an empty line, or one that ends with --final-marker, makes it final, and
so does the end of the input. Lines that come faster than they are translated supersede each
other; final ones are always translated. On a terminal the last line is rewritten as the
translation follows; otherwise the final translations are printed, a line each. The text of each
update is exactly what the large model makes of that caption by itself, unless --stability is
given."""


def add_translate(commands: Any, content: Callable[[str], str]) -> argparse.ArgumentParser:
    """Add the command, without the options that others have too; `content` reads a file."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "translate",
        help="translate live captions",
        description=_DESCRIPTION.replace("\n", " "),
        formatter_class=HelpFormatter,
    )
    parser.add_argument("--to", required=True, metavar="LANGUAGE", help="code or name, as in fr")
    parser.add_argument(
        "--template",
        type=content,
        metavar="FILE",
        help="what the model is told: {source}, and {language}, {glossary} and {context} if wanted "
        f"(default: {json.dumps(DEFAULT_TEMPLATE)})",
    )
    parser.add_argument(
        "--glossary",
        type=content,
        metavar="FILE",
        help="terms to use, a line each: term = translation",
    )
    parser.add_argument(
        "--context-lines",
        type=whole,
        default=0,
        metavar="N",
        help="final lines before this one that the model is told, with their translations",
    )
    parser.add_argument(
        "--hold-back",
        type=whole,
        default=0,
        metavar="K",
        help="don't show the last K words until they settle",
    )
    parser.add_argument(
        "--stability",
        type=number,
        default=0.0,
        metavar="NATS",
        help="keep words shown before while the large model prefers others by less than this; "
        "lossy: the text may not be the large model's own",
    )
    parser.add_argument("--final-marker", metavar="TEXT", help="ends a line that is final")
    parser.add_argument(
        "--json", action="store_true", help="print a JSON object for each change instead"
    )
    parser.add_argument(
        "--max-tokens", type=positive, default=256, metavar="N", help="longest line, tokens"
    )
    parser.add_argument(
        "--num-draft-tokens",
        type=whole,
        metavar="K",
        help="the draft model's drafts per round; 0: the cloud decodes alone (default: adapts)",
    )
    return parser
