"""The arguments of `draftwire`."""

from __future__ import annotations

import argparse
from typing import Any

from draftwire import __version__
from draftwire.command_line import (
    HelpFormatter,
    Parser,
    content,
    not_negative,
    positive,
    whole,
)
from draftwire.commands import add_conformance, add_credentials, add_export
from edge_client.client_arguments import add_connection, add_controller, add_model, add_objective
from edge_client.generation_arguments import add_grammar, add_sampling, add_tentative
from edge_client.models_arguments import add_models
from edge_client.profiles import PROFILES
from edge_client.translation_arguments import add_translate

_EPILOG = """\
examples:
  draftwire demo --rtt 60
  draftwire generate "Why is the sky blue?" --verifier gpu.example.net:7433 --api-key-file key
  draftwire chat --model gemma-2-2b-it-Q4_K_M.gguf
  draftwire endpoint --verifier gpu.example.net:7433 --api-key-file key
  captions | draftwire translate --to fr --hold-back 2

Drafted tokens are tinted, corrections underlined. NO_COLOR=1 turns colours off; when stdout is
no terminal only the text goes there. Exit status: 0 done, 1 error, 2 usage, 130 interrupted.
"""


def build_parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    parser = Parser(
        prog="draftwire",
        description="The device side of Draftwire: drafts with a small model here, has the large "
        "model in the cloud decide. The text is exactly the large model's.",
        epilog=_EPILOG,
        formatter_class=HelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"draftwire {__version__}")
    commands = parser.add_subparsers(
        title="commands", dest="command", required=True, metavar="COMMAND"
    )
    _add_demo(commands)
    generate = commands.add_parser(
        "generate",
        help="generate once",
        description="Generate the answer to one prompt, on stdout.",
        formatter_class=HelpFormatter,
    )
    generate.add_argument("prompt", nargs="?", default="-", help="the prompt; - reads stdin")
    generate.add_argument(
        "--raw", action="store_true", help="continue the prompt itself, without the chat template"
    )
    generate.add_argument("--json", action="store_true", help="print one JSON object instead")
    generate.add_argument(
        "--prediction",
        type=content,
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="a text that the answer is expected to repeat for the most part",
    )
    generate.add_argument(
        "--top-logprobs",
        type=whole,
        default=argparse.SUPPRESS,
        metavar="N",
        help="with --json: each token's log-probability, and those of the N likeliest",
    )
    add_client_options(generate)
    chat = commands.add_parser(
        "chat",
        help="talk, turn by turn",
        description="Talk in turns; each sends only what is new. Ctrl-C stops an answer, or drops "
        "the line that is being typed; Ctrl-D, /quit or Ctrl-C twice at an empty prompt ends. "
        "Where stdout is no terminal the prompt is on stderr.",
        formatter_class=HelpFormatter,
    )
    chat.add_argument("--system", metavar="TEXT", help="system message")
    add_client_options(chat)
    _add_endpoint(commands)
    _add_translate(commands)
    _add_trace(commands)
    _add_doctor(commands)
    add_models(commands)
    add_export(commands)
    add_conformance(commands)
    return parser


def _add_demo(commands: Any) -> None:
    demo = commands.add_parser(
        "demo",
        help="one prompt split and cloud-alone, on the demo pair",
        description="Start a verifier, run the same prompt split and cloud-alone, check that the "
        "tokens are identical and print both speeds. Each side gets half of the processor's "
        "cores. Exit status 1 if the tokens differ.",
        formatter_class=HelpFormatter,
    )
    demo.add_argument(
        "--prompt",
        metavar="TEXT",
        default="Explain how a bicycle stays upright, in a few paragraphs.",
        help="what to answer",
    )
    demo.add_argument(
        "--rtt", type=not_negative, default=0.0, metavar="MS", help="emulated round trip"
    )
    demo.add_argument("--pin", action="store_true", help="one processor core for each side")
    demo.add_argument("--repeat", type=positive, default=1, metavar="N", help="runs, interleaved")
    demo.add_argument(
        "--drafter",
        type=_drafter,
        default="model",
        metavar="model|noisy:SIZE|random|wrong",
        help="spoil the drafter on purpose: the text must stay the same",
    )
    demo.add_argument(
        "--target", metavar="FILE", help="target for the verifier (default: the draft model's file)"
    )
    add_model(demo)
    demo.add_argument(
        "--json", action="store_true", help="print one JSON object on stdout and nothing else there"
    )
    demo.add_argument("--ignore-eos", action="store_true", help="go on to --max-tokens")
    add_sampling(demo, max_tokens=200, seed=0)
    add_controller(demo)


def _drafter(text: str) -> str:
    kind, colon, size = text.partition(":")
    if kind == "noisy" and colon:
        not_negative(size)
    elif text not in ("model", "random", "wrong"):
        raise argparse.ArgumentTypeError("use model, noisy:SIZE, random or wrong")
    return text


def _add_endpoint(commands: Any) -> None:
    endpoint = commands.add_parser(
        "endpoint",
        help="serve OpenAI's API on this device",
        description="Serve OpenAI's HTTP API on this device, for apps that know it: "
        "/v1/chat/completions, /v1/completions, /v1/models and /healthz; with a browser, a page to "
        "chat on and to watch. Needs the endpoint extra.",
        formatter_class=HelpFormatter,
    )
    group = endpoint.add_argument_group("serving")
    group.add_argument(
        "--listen",
        default="127.0.0.1:8080",
        metavar="HOST:PORT",
        help="where to; port 0: a free one",
    )
    group.add_argument(
        "--expose",
        action="store_true",
        help="allow an address that others can reach; there are no keys and no TLS",
    )
    group.add_argument("--name", help="the model's name for apps (default: the verifier's own)")
    group.add_argument(
        "--drafters",
        type=positive,
        default=1,
        metavar="N",
        help="draft for so many requests at once; others wait in turn",
    )
    group.add_argument(
        "--max-requests",
        type=positive,
        default=64,
        metavar="N",
        help="refuse more than so many requests at once, those that wait included",
    )
    add_connection(endpoint)
    add_credentials(endpoint)
    add_controller(endpoint)


def _add_translate(commands: Any) -> None:
    translate = add_translate(commands, content)
    add_connection(translate)
    add_credentials(translate)
    add_controller(translate)


def _add_trace(commands: Any) -> None:
    trace = commands.add_parser(
        "trace",
        help="draw what the controller chose, and why",
        description="Draw a file written with --trace: drafts, window, acceptance, round trip and "
        "speed over time, as text.",
        formatter_class=HelpFormatter,
    )
    trace.add_argument("file", metavar="FILE", help="the trace")
    trace.add_argument(
        "--png", metavar="FILE", help="draw an image too (needs matplotlib: the bench extra)"
    )
    trace.add_argument("--width", type=positive, default=72, metavar="N", help="columns of time")


def _add_doctor(commands: Any) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="measure this device and its verifier, and say what to expect",
        description="Measure how fast this device drafts, by threads, and through a short real "
        "run the round trip, the verifier's passes and how often drafts hold; then say which mode "
        "is best, how much faster it should be, and up to which round trip.",
        formatter_class=HelpFormatter,
    )
    doctor.add_argument(
        "--profile",
        choices=sorted(PROFILES),
        help="keep to the limits of such a device: threads, memory, context, watts",
    )
    doctor.add_argument("--json", action="store_true", help="print one JSON object")
    add_connection(doctor, verifier="")
    add_credentials(doctor)
    add_objective(doctor.add_argument_group("controller"))


def add_client_options(parser: argparse.ArgumentParser) -> None:
    """The options of a command that generates: those that make its client, and those of texts."""
    add_connection(parser)
    add_credentials(parser)
    add_sampling(parser)
    add_tentative(parser)
    add_grammar(parser)
    add_controller(parser)
