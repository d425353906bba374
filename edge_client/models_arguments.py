"""The arguments of `draftwire models`."""

from __future__ import annotations

from typing import Any

from draftwire.command_line import HelpFormatter
from draftwire.commands import add_credentials


def add_models(commands: Any) -> None:
    """The command's arguments."""
    models = commands.add_parser(
        "models",
        help="list, fetch and inspect draft models, and see which fit a target",
        description="Draft models on this device.",
        formatter_class=HelpFormatter,
    )
    kinds = models.add_subparsers(title="commands", dest="what", required=True, metavar="COMMAND")
    kinds.add_parser(
        "list",
        help="draft models that are here",
        description="Print the draft models that are here, one path a line: the demo model, "
        "exported ones, and those in the hub's cache.",
        formatter_class=HelpFormatter,
    )
    fetching = kinds.add_parser(
        "fetch",
        help="bring one here",
        description="Bring a draft model here and print its path.",
        formatter_class=HelpFormatter,
    )
    fetching.add_argument(
        "source", metavar="demo|HUB-ID", help="the demo model, or owner/name[@REVISION] of the hub"
    )
    fetching.add_argument("--file", metavar="NAME", help="which of its files, where it has several")
    inspecting = kinds.add_parser(
        "inspect",
        help="what a model's files say",
        description="Print a model's vocabulary, fingerprint, template, quantization and context.",
        formatter_class=HelpFormatter,
    )
    inspecting.add_argument("model", metavar="MODEL|HOST:PORT", help="a model, or a verifier's")
    fitting = kinds.add_parser(
        "fit",
        help="whether a draft model fits a target",
        description="Compare vocabulary, special tokens, chat template and context. Exit status 1 "
        "if the draft model does not fit.",
        formatter_class=HelpFormatter,
    )
    fitting.add_argument("draft", metavar="DRAFT", help="a GGUF file, or an ONNX model")
    fitting.add_argument(
        "target", metavar="TARGET|HOST:PORT", help="a model, a Hugging Face directory, a verifier"
    )
    for parser in (inspecting, fitting):
        parser.add_argument("--json", action="store_true", help="print one JSON object")
        add_credentials(parser)
