"""Command lines of documents, read as the commands would."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from unittest.mock import patch

from cloud_verifier.cli import build_parser as verifier_parser
from edge_client.arguments import build_parser as device_parser


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """The arguments of `draftwire` or `draftwire-verifier`; files that they name may be missing."""
    program, *arguments = words
    parsers = {"draftwire": device_parser, "draftwire-verifier": verifier_parser}
    with patch("draftwire.command_line.Path"):
        return parsers[program]().parse_args(arguments)
