"""Options that say what a client is made of: verifier, draft model, controller."""

from __future__ import annotations

import argparse
from typing import Any

from draftwire.command_line import positive
from draftwire.commands import credentials
from draftwire.errors import InvalidRequest
from draftwire.types import DEFAULT_ADDRESS
from edge_client.choice import Objective, Watts


def add_connection(parser: argparse.ArgumentParser, verifier: str = DEFAULT_ADDRESS) -> None:
    """Where the verifier is and what drafts."""
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


def add_controller(parser: argparse.ArgumentParser) -> None:
    """How the controller chooses, and a trace of it."""
    group = parser.add_argument_group("controller")
    add_objective(group)
    group.add_argument(
        "--trace",
        metavar="FILE",
        help="append a line a round to FILE that shows why it chose as it did",
    )


def add_objective(group: Any) -> None:
    """What the controller chooses by."""
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
