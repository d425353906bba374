"""What the command lines of both sides have in common."""

from __future__ import annotations

import argparse
import os
from typing import Any

from draftwire.command_line import HelpFormatter, content, readable, seconds, whole
from draftwire.credentials import Credentials

API_KEY_VARIABLE = "DRAFTWIRE_API_KEY"


CONFORMANCE_EXAMPLES = """\
examples:
  draftwire conformance -- ./my-client
  draftwire conformance --only cut --traces traces -- ./my-client --verbose
  draftwire conformance --tasks --listen 192.168.1.7:7433 > tasks.jsonl
  draftwire conformance --listen 192.168.1.7:7433
"""


def add_credentials(parser: argparse.ArgumentParser) -> None:
    """The options that `credentials` reads."""
    group = parser.add_argument_group(
        "security", "TLS is used to every verifier that is not on this machine."
    )
    group.add_argument(
        "--ca",
        type=readable,
        metavar="FILE",
        help="PEM file of the authorities to trust (default: the usual ones)",
    )
    group.add_argument(
        "--cert",
        type=readable,
        metavar="FILE",
        help="PEM certificate of this client, for mutual TLS",
    )
    group.add_argument("--key", type=readable, metavar="FILE", help="PEM key of that certificate")
    group.add_argument(
        "--api-key-file",
        type=content,
        dest="api_key",
        metavar="FILE",
        help=f"file that holds the API key (default: the variable {API_KEY_VARIABLE})",
    )
    group.add_argument(
        "--padding",
        type=whole,
        default=0,
        metavar="BYTES",
        help="make frames of both sides multiples of this long, to hide how many tokens they hold",
    )
    group.add_argument(
        "--insecure", action="store_true", help="plaintext, the API key too, even across a network"
    )


def credentials(arguments: argparse.Namespace) -> Credentials:
    """What the options of `add_credentials` and the environment say.

    Raises what `Credentials` raises.
    """
    api_key = arguments.api_key
    if api_key is None:
        api_key = os.environ.get(API_KEY_VARIABLE, "")
    return Credentials(
        ca=arguments.ca,
        certificate=arguments.cert,
        key=arguments.key,
        api_key=api_key.strip(),
        insecure=arguments.insecure,
        padding=arguments.padding,
    )


def add_export(commands: Any) -> None:
    """The command `export-onnx`, which the device's command passes on to the verifier's."""
    export = commands.add_parser(
        "export-onnx",
        help="write a model as ONNX, for a device to draft with",
        description="Write a model and its tokenizer to a directory as ONNX, with a cache of keys "
        "and values that is written in place, and check that its tokens are the source's own on "
        "20 prompts. Prints the directory. Needs torch: the export extra.",
        formatter_class=HelpFormatter,
    )
    export.add_argument(
        "model",
        metavar="DIR|FILE.gguf|HUB-ID",
        help="a Hugging Face directory, a GGUF file, or a model hub id",
    )
    export.add_argument(
        "output",
        nargs="?",
        metavar="DIR",
        help="where to write it (default: a directory of the cache, written once)",
    )
    export.add_argument(
        "--weights",
        choices=["float32", "int8", "int4"],
        default="int8",
        help="what the linear layers' weights are kept in; with fewer bits than float32 the text "
        "is a worse draft of the source's, which the command says",
    )


def add_conformance(commands: Any) -> None:
    """The command `conformance`, which the device's command passes on to the verifier's."""
    conformance = commands.add_parser(
        "conformance",
        help="check a client of any language against the wire rules",
        description="Serve as a verifier that judges its client: scenario by scenario the client "
        "is given a task, frames are lost, streams broken and opened again, and every frame it "
        "sends is held against the rules of docs/protocol.md. Exits 0 if all is well, else 1. "
        "No model and no torch are needed. docs/implementers.md says how a client is written.",
        epilog=CONFORMANCE_EXAMPLES,
        formatter_class=HelpFormatter,
    )
    conformance.add_argument(
        "client",
        nargs="*",
        metavar="COMMAND",
        help="starts the client, after --: it reads tasks from stdin and answers on stdout; "
        "without, clients that are started elsewhere are waited for",
    )
    conformance.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="this scenario; can be repeated"
    )
    conformance.add_argument("--list", action="store_true", help="list the scenarios")
    conformance.add_argument(
        "--tasks", action="store_true", help="print the tasks, a line of JSON each"
    )
    conformance.add_argument(
        "--listen", default="127.0.0.1:0", metavar="HOST:PORT", help="where to; 0: any port"
    )
    conformance.add_argument(
        "--patience",
        type=seconds,
        default=5.0,
        metavar="S",
        help="seconds a client may be silent where a frame is due",
    )
    conformance.add_argument(
        "--timeout", type=seconds, default=60.0, metavar="S", help="seconds a scenario may take"
    )
    conformance.add_argument(
        "--traces", metavar="DIR", help="write the frames of each scenario there"
    )
    conformance.add_argument("--json", action="store_true", help="print one JSON object")
