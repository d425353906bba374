"""`draftwire`: generate, chat, translate and serve with drafts here, a verifier elsewhere."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from draftwire.errors import DraftwireError, MissingDependency
from draftwire.interrupts import QuietInterrupt
from draftwire.printable import printable
from edge_client.arguments import build_parser
from edge_client.client_arguments import client_options
from edge_client.generation_arguments import sampling_options

if TYPE_CHECKING:
    from edge_client.sync import EdgeClient

_LAST_WORDS_S = 5.0
"""How long a command that runs in a process of its own may take to end after Ctrl-C."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    arguments = build_parser().parse_args(argv)
    commands = {
        "demo": _demo,
        "generate": _generate,
        "chat": _chat,
        "translate": _translate,
        "endpoint": _endpoint,
        "trace": _trace,
        "doctor": _doctor,
        "models": _models,
        "export-onnx": _export,
        "conformance": _conformance,
    }
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine("draftwire: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    # Whoever stops us politely gets what Ctrl-C gets: nothing of ours is left running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return commands[arguments.command](arguments)
    except DraftwireError as error:
        print(printable(f"draftwire: {error.code}: {error}", keep="\n"), file=sys.stderr)
        return 1
    except UnicodeDecodeError as error:
        print(f"draftwire: INVALID_REQUEST: the input is not {error.encoding}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever reads our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


class _OneLine(logging.Formatter):
    """An error's own words instead of its traceback, and none that a terminal obeys."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record), keep="\n")

    def formatException(self, ei: Any) -> str:  # noqa: N802 (the standard library's name)
        return f"  {ei[0].__name__}: {ei[1]}"


def _demo(arguments: argparse.Namespace) -> int:
    with QuietInterrupt():
        from edge_client.demo import run

    return run(arguments)


def _generate(arguments: argparse.Namespace) -> int:
    options = sampling_options(arguments)
    options["logprobs"] = "top_logprobs" in options
    if arguments.raw:
        options["prompt"] = _prompt(arguments)
    else:
        options["messages"] = [{"role": "user", "content": _prompt(arguments).strip()}]
    with _client(arguments) as client, client.generate(**options) as stream:
        if arguments.json:
            from edge_client.console import as_json

            stream.read()
            print(json.dumps(as_json(stream.summary), ensure_ascii=False))
        else:
            from edge_client.commands.answer import show_answer

            show_answer(stream)
    return 0


def _prompt(arguments: argparse.Namespace) -> str:
    if arguments.prompt != "-":
        return str(arguments.prompt)
    if sys.stdin.isatty():
        print("The prompt, and Ctrl-D to end it:", file=sys.stderr)
    return sys.stdin.read()


def _chat(arguments: argparse.Namespace) -> int:
    with _client(arguments) as client:
        from edge_client.commands.chat import run

        return run(client, arguments)


def _endpoint(arguments: argparse.Namespace) -> int:
    if missing := [name for name in ("starlette", "uvicorn") if find_spec(name) is None]:
        raise MissingDependency(
            f"the endpoint needs {' and '.join(missing)}",
            remedy="pip install 'draftwire[endpoint]'",
        )
    with QuietInterrupt():
        from edge_client.client import AsyncEdgeClient
        from edge_client.endpoint.server import bind, serve

    def ready(url: str, model: str) -> None:
        if not model:
            print(f"draftwire: no verifier at {arguments.verifier} yet", file=sys.stderr)
        model = printable(model)
        print(f"serving {model or 'no model yet'} on {url}/v1, with a page at {url}/", flush=True)

    def make_client() -> AsyncEdgeClient:
        options = client_options(arguments)
        return AsyncEdgeClient.from_model(drafters=arguments.drafters, **options)

    with bind(arguments.listen, expose=arguments.expose) as listening:
        asyncio.run(
            serve(
                make_client,
                listening,
                name=arguments.name,
                max_requests=arguments.max_requests,
                expose=arguments.expose,
                ready=ready,
            )
        )
    return 0


def _translate(arguments: argparse.Namespace) -> int:
    from edge_client.translation_command import run

    with _client(arguments) as client:
        return run(client, arguments)


def _trace(arguments: argparse.Namespace) -> int:
    from edge_client.trace import read_trace
    from edge_client.trace_chart import chart, plot

    rounds = read_trace(arguments.file)
    print(chart(rounds, arguments.width))
    if arguments.png:
        plot(rounds, arguments.png)
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    with QuietInterrupt():
        from edge_client.commands.doctor import run

    return run(arguments)


def _models(arguments: argparse.Namespace) -> int:
    from edge_client.commands.models import run

    return run(arguments)


def _export(arguments: argparse.Namespace) -> int:
    """Have the verifier's package do it, in a process of its own: it takes torch."""
    import importlib.util

    for package in ("cloud_verifier", "torch", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            raise MissingDependency(
                f"exporting takes the package {package}, which a device does not need",
                remedy="pip install 'draftwire[export]' there, or on another machine, and copy "
                "the directory it writes",
            )
    output = [arguments.output] if arguments.output else []
    return _by_verifier("export-onnx", arguments.model, *output, "--weights", arguments.weights)


def _conformance(arguments: argparse.Namespace) -> int:
    """Have the verifier's package do it, in a process of its own."""
    command = ["conformance"]
    for name in ("list", "tasks", "json"):
        command += [f"--{name}"] if getattr(arguments, name) else []
    for name in ("listen", "patience", "timeout", "traces"):
        value = getattr(arguments, name)
        command += [] if value is None else [f"--{name}", str(value)]
    for scenario in arguments.only:
        command += ["--only", scenario]
    if arguments.client:
        command += ["--", *arguments.client]
    return _by_verifier(*command)


def _by_verifier(*command: str) -> int:
    """Run a command of the verifier's package; returns its exit status."""
    import subprocess

    module = [sys.executable, "-m", "cloud_verifier"]
    process = subprocess.Popen([*module, *command])  # noqa: S603 (ours)
    try:
        status = process.wait()
    except KeyboardInterrupt:  # the terminal has told it, too: it may have something to say yet
        try:
            status = process.wait(_LAST_WORDS_S)
        except subprocess.TimeoutExpired:
            raise KeyboardInterrupt from None
    finally:
        process.kill()
        process.wait()
    return status if status >= 0 else 128 - status


def _client(arguments: argparse.Namespace) -> EdgeClient:
    with QuietInterrupt():
        from edge_client.sync import EdgeClient

    return EdgeClient.from_model(**client_options(arguments))
