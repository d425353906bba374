"""The arguments of `draftwire`."""

from __future__ import annotations

import argparse
from inspect import signature
from typing import Any

from draftwire import __version__
from draftwire.command_line import (
    HelpFormatter,
    Parser,
    content,
    not_negative,
    number,
    positive,
    seconds,
    whole,
)
from draftwire.commands import add_conformance, add_credentials, add_export, credentials
from draftwire.errors import InvalidRequest
from draftwire.types import DEFAULT_ADDRESS, VerifyMode
from edge_client.choice import Objective, Watts
from edge_client.commands.models import add_models
from edge_client.options import settings
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
    _add_connection(endpoint)
    add_credentials(endpoint)
    _add_controller(endpoint)


def _add_translate(commands: Any) -> None:
    translate = add_translate(commands, content)
    _add_connection(translate)
    add_credentials(translate)
    _add_controller(translate)


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
    _add_connection(doctor, verifier="")
    add_credentials(doctor)
    _add_objective(doctor.add_argument_group("controller"))


def _add_controller(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("controller")
    _add_objective(group)
    group.add_argument(
        "--trace", metavar="FILE", help="add a line a round that shows why it chose as it did"
    )


def _add_objective(group: Any) -> None:
    group.add_argument(
        "--objective",
        choices=[one.value for one in Objective],
        default=Objective.LATENCY.value,
        help="what tokens should take little of: time, the verifier's time, or the device's "
        "energy; the latter two as long as that is no slower than the cloud alone",
    )
    group.add_argument(
        "--watts",
        type=_watts,
        metavar="DRAFTING,WAITING",
        help="what the device draws while it drafts and all along, for --objective energy "
        f"(default: {Watts().drafting:g},{Watts().waiting:g})",
    )


def _watts(text: str) -> Watts:
    try:
        drafting, waiting = map(float, text.split(","))
        return Watts(drafting=drafting, waiting=waiting)
    except (ValueError, InvalidRequest) as error:
        raise argparse.ArgumentTypeError("give two figures ≥ 0, as in 4,1") from error


def controller_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `EdgeClient` that say how its controller should choose."""
    return {name: getattr(arguments, name) for name in ("objective", "watts", "trace")}


def add_client_options(parser: argparse.ArgumentParser) -> None:
    """The options of a command that generates: those that make its client, and those of texts."""
    _add_connection(parser)
    add_credentials(parser)
    _add_sampling(parser)
    _add_tentative(parser)
    _add_grammar(parser)
    _add_controller(parser)


def client_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `EdgeClient.from_model` that were given."""
    from draftwire.testing.demo import demo_model_path

    return {
        "verifier": arguments.verifier,
        "credentials": credentials(arguments),
        "model": arguments.model or demo_model_path(),
        "providers": arguments.providers,
        "threads": arguments.threads,
        "context": arguments.context,
        **controller_options(arguments),
    }


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
    _add_sampling(demo, max_tokens=200, seed=0)
    _add_controller(demo)


def _drafter(text: str) -> str:
    kind, colon, size = text.partition(":")
    if kind == "noisy" and colon:
        not_negative(size)
    elif text not in ("model", "random", "wrong"):
        raise argparse.ArgumentTypeError("use model, noisy:SIZE, random or wrong")
    return text


def add_model(group: Any) -> None:
    """The options that say what drafts."""
    group.add_argument(
        "--model",
        "--draft",
        metavar="FILE.gguf|FILE.onnx|DIR",
        help="draft model: a GGUF file for llama.cpp, an .onnx file or the directory of one for "
        "ONNX Runtime (default: the demo model)",
    )
    group.add_argument(
        "--provider",
        dest="providers",
        action="append",
        default=[],
        metavar="NAME",
        help="ONNX Runtime's execution provider, as in CUDAExecutionProvider (may be repeated, the "
        "preferred one first; default: the processor)",
    )


def _add_connection(parser: argparse.ArgumentParser, verifier: str = DEFAULT_ADDRESS) -> None:
    group = parser.add_argument_group("models")
    group.add_argument(
        "--verifier",
        default=verifier,
        metavar="HOST:PORT[,…]",
        help="where the verifier is; several: the next when one fails",
    )
    add_model(group)
    group.add_argument(
        "--threads",
        type=positive,
        metavar="N",
        help="threads of the draft model (default: one for each core, up to four; half as many "
        "where the verifier is on this machine, too)",
    )
    group.add_argument(
        "--context", type=positive, default=4096, metavar="N", help="draft model's context, tokens"
    )


def _add_sampling(
    parser: argparse.ArgumentParser, max_tokens: int = 256, seed: int | None = None
) -> None:
    group = parser.add_argument_group("generation")
    group.add_argument(
        "--max-tokens",
        type=whole,
        default=max_tokens,
        metavar="N",
        help="longest answer, tokens; 0: as long as the context",
    )
    group.add_argument(
        "--min-tokens",
        type=whole,
        default=0,
        metavar="N",
        help="no end token among the first N",
    )
    group.add_argument("--temperature", type=number, default=0.0, metavar="T", help="0: greedy")
    group.add_argument(
        "--top-k", type=whole, default=0, metavar="N", help="keep the N likeliest tokens; 0: all"
    )
    group.add_argument(
        "--top-p",
        type=number,
        default=1.0,
        metavar="P",
        help="keep the likeliest tokens that together reach P",
    )
    group.add_argument(
        "--min-p",
        type=number,
        default=0.0,
        metavar="P",
        help="drop tokens below P times the likeliest one's probability",
    )
    group.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="end the answer before this text (may be repeated)",
    )
    _add_penalties(group)
    group.add_argument(
        "--seed",
        type=whole,
        default=seed,
        metavar="N",
        help="of all that is random" + ("" if seed is not None else " (default: a random one)"),
    )
    group.add_argument(
        "--verify-mode",
        choices=[mode.value for mode in VerifyMode],
        default=VerifyMode.MATCH.value,
        help="how drafts are judged; typical is lossy: the text may not be the target's own",
    )
    group.add_argument(
        "--prompt-lookup",
        action="store_true",
        help="draft what followed the same tokens earlier in the text, where it repeats itself",
    )
    group.add_argument(
        "--timeout",
        type=seconds,
        dest="timeout_s",
        metavar="S",
        help="give up on an answer that has not ended by then",
    )
    group.add_argument(
        "--num-draft-tokens",
        type=whole,
        metavar="K",
        help="drafts per round; 0: the cloud decodes alone (default: adapts)",
    )


def _add_penalties(group: Any) -> None:
    for name, default, text in (
        ("repetition", 1.0, "divide logits of tokens seen in prompt or output by P; 1: none"),
        ("presence", 0.0, "subtract P from logits of tokens seen in the output"),
        ("frequency", 0.0, "subtract P per occurrence in the output"),
    ):
        group.add_argument(
            f"--{name}-penalty", type=number, default=default, metavar="P", help=text
        )
    group.add_argument(
        "--logit-bias",
        type=_bias,
        action="append",
        default=[],
        metavar="ID:BIAS",
        help="add BIAS to the logit of a token id (may be repeated)",
    )


def _add_tentative(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("text before it is final")
    group.add_argument(
        "--show-drafts", action="store_true", help="on a terminal: show drafts, dimmed, at once"
    )
    group.add_argument(
        "--offline-tokens",
        type=whole,
        default=0,
        metavar="N",
        help="while the verifier can't be reached, draft on alone, N tokens at most; they are "
        "verified, and replaced if need be, when it is back",
    )


def _add_grammar(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("structured output (one of)")
    for name, kind, metavar, text in (
        ("json-schema", content, "FILE", "the answer is JSON of this schema"),
        ("regex", str, "PATTERN", "the answer matches this regular expression, all of it"),
        ("lark", content, "FILE", "the answer is of this grammar, in llguidance's Lark"),
    ):
        group.add_argument(
            f"--{name}", type=kind, default=argparse.SUPPRESS, metavar=metavar, help=text
        )


def _bias(text: str) -> tuple[int, float]:
    token, colon, bias = text.partition(":")
    try:
        if not colon:
            raise ValueError
        return int(token), float(bias)
    except ValueError:
        raise argparse.ArgumentTypeError("use ID:BIAS, as in 42:-100") from None


def sampling_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `EdgeClient.generate` that were given on the command line."""
    names = signature(settings).parameters
    options = {name: value for name, value in vars(arguments).items() if name in names}
    return options | {"logit_bias": dict(arguments.logit_bias)}


def check_sampling(arguments: argparse.Namespace) -> None:
    """Raise `InvalidRequest` for what `EdgeClient.generate` would refuse."""
    settings(**sampling_options(arguments))
