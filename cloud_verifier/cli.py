"""`draftwire-verifier`: serve a target model, or ask a verifier or a machine how it is."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import Any

from cloud_verifier.issue import add_issuing, issue
from cloud_verifier.model_name import check_name
from draftwire import __version__
from draftwire.command_line import HelpFormatter, Parser, not_negative, positive, seconds
from draftwire.commands import add_conformance, add_credentials, add_export, credentials
from draftwire.credentials import tls_failure
from draftwire.errors import DraftwireError, MissingDependency
from draftwire.interrupts import QuietInterrupt
from draftwire.types import DEFAULT_ADDRESS

_EPILOG = """\
examples:
  draftwire-verifier serve --model SmolLM2-135M-Instruct.Q4_1.gguf
  draftwire-verifier certs certs --host gpu.example.net
  draftwire-verifier keys new phone-7 >> keys
  draftwire-verifier serve --model google/gemma-2-9b-it --dtype bfloat16 --device cuda \\
      --listen 0.0.0.0:7433 --tls-cert certs/server.pem --tls-key certs/server.key --keys keys
  draftwire-verifier doctor --model google/gemma-2-9b-it
  draftwire-verifier health gpu.example.net:7433 --ca certs/ca.pem

`serve` prints one line on stdout when it is ready; everything else goes to stderr. SIGTERM and
Ctrl-C let generations finish for --grace seconds, hand the rest back to their clients, exit 0;
the second of a kind ends it at once.
"""


def build_parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    parser = Parser(
        prog="draftwire-verifier",
        description="The cloud side of Draftwire: checks the drafts of many devices in batched "
        "passes of one target model.",
        epilog=_EPILOG,
        formatter_class=HelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"draftwire {__version__}")
    commands = parser.add_subparsers(
        title="commands", dest="command", required=True, metavar="COMMAND"
    )

    serve = commands.add_parser(
        "serve",
        help="serve a target model over gRPC",
        description="Serve a target model over gRPC.",
        formatter_class=HelpFormatter,
    )
    model = serve.add_argument_group("model")
    model.add_argument(
        "--model",
        required=True,
        metavar="DIR|FILE.gguf|HUB-ID|table",
        help="a Hugging Face directory, a GGUF file (converted once to full precision and cached), "
        "a model hub id such as owner/name or owner/name@REVISION, or 'table', a toy model for "
        "trying the wire",
    )
    model.add_argument("--name", help="name to serve it under (default: from the model)")
    model.add_argument(
        "--dtype",
        default="auto",
        choices=["auto", "float32", "bfloat16", "float16"],
        help="floating-point type of the weights; auto: the stored one, float32 for a GGUF file",
    )
    model.add_argument(
        "--quantize",
        choices=["int8", "int4"],
        help="keep the weights of the linear layers in so few bits; int4 needs a GPU and bfloat16; "
        "needs the quantize extra",
    )
    model.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run code that came with the model; a hub id must then name a commit",
    )
    model.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    model.add_argument(
        "--threads",
        type=positive,
        metavar="N",
        help="CPU threads of the model (default: one for each core)",
    )
    model.add_argument(
        "--deterministic",
        action="store_true",
        help="compute each token the same to the last bit whatever else is in the pass; slower, "
        "and on a CPU only",
    )
    model.add_argument(
        "--attention",
        default="auto",
        choices=["auto", "sdpa", "varlen", "flex"],
        help="attention back end; auto: varlen on a GPU, flex there for soft-capped scores, sdpa "
        "elsewhere and for what those can't do (see doctor)",
    )
    model.add_argument(
        "--cuda-graphs",
        action=argparse.BooleanOptionalAction,
        help="record small passes at start and replay them (default: on a GPU with varlen)",
    )
    serving = serve.add_argument_group("serving")
    serving.add_argument(
        "--listen", default=DEFAULT_ADDRESS, metavar="HOST:PORT", help="0: any port"
    )
    serving.add_argument(
        "--max-sessions", type=positive, default=64, metavar="N", help="generations at once"
    )
    serving.add_argument(
        "--kv-tokens",
        type=positive,
        default=32768,
        metavar="N",
        help="KV memory, tokens over all sessions",
    )
    serving.add_argument(
        "--max-context",
        type=positive,
        metavar="N",
        help="longest text of a session, tokens (default: as far as model and KV go)",
    )
    serving.add_argument(
        "--max-batch-tokens",
        type=positive,
        default=512,
        metavar="N",
        help="tokens of one pass over all sessions",
    )
    serving.add_argument(
        "--session-ttl",
        type=not_negative,
        default=600.0,
        metavar="S",
        help="seconds an idle session stays",
    )
    serving.add_argument(
        "--max-silence",
        type=seconds,
        default=120.0,
        metavar="S",
        help="seconds a stream may owe a frame; its session can be opened again",
    )
    serving.add_argument(
        "--max-generation-time",
        type=seconds,
        metavar="S",
        help="seconds a generation may take in all (default: no bound)",
    )
    serving.add_argument(
        "--grace",
        type=not_negative,
        default=10.0,
        metavar="S",
        help="seconds to finish in when stopped",
    )
    serving.add_argument(
        "--until-stdin-ends",
        action="store_true",
        help="stop when standard input ends, as a pipe does when the process at its other end is "
        "gone, however it went",
    )
    security = serve.add_argument_group("security")
    security.add_argument(
        "--tls-cert", metavar="FILE", help="PEM certificate chain; read again when it changes"
    )
    security.add_argument("--tls-key", metavar="FILE", help="its key, PEM, unencrypted")
    security.add_argument(
        "--client-ca",
        metavar="FILE",
        help="mutual TLS: admit only clients with a certificate that these authorities signed",
    )
    security.add_argument(
        "--keys",
        metavar="FILE",
        help="admit only API keys of this file, a line for each; read again when it changes",
    )
    security.add_argument(
        "--max-connections", type=positive, default=512, metavar="N", help="connections at once"
    )
    security.add_argument(
        "--insecure",
        action="store_true",
        help="allow plaintext on an address that others can reach",
    )
    watching = serve.add_argument_group("watching")
    watching.add_argument(
        "--metrics", metavar="HOST:PORT", help="serve Prometheus metrics there, at /metrics"
    )
    watching.add_argument(
        "--otlp",
        metavar="URL",
        help="send an OpenTelemetry span of every stream to this collector's gRPC port, as in "
        "http://localhost:4317; needs the otel extra",
    )
    watching.add_argument(
        "--log-level",
        default="info",
        choices=["debug", "info", "warning", "error"],
        help="least severe messages to log; with debug, traces have an exception's own words, "
        "which may quote what was asked",
    )
    watching.add_argument(
        "--log-format", default="text", choices=["text", "json"], help="json: one object a line"
    )

    doctor = commands.add_parser(
        "doctor",
        help="say what this machine has and what a model would need",
        description="Say what this machine has, which attention back ends serve here and why not "
        "the others, and what a model would need. Loads no weights.",
        formatter_class=HelpFormatter,
    )
    doctor.add_argument(
        "--model",
        metavar="DIR|FILE.gguf|HUB-ID",
        help="a model to say the sizes of; only its configuration is read",
    )
    doctor.add_argument("--json", action="store_true", help="print one JSON object")

    health = commands.add_parser(
        "health",
        help="exit 0 if a verifier is serving",
        description="Exit 0 if the verifier at HOST:PORT is serving, else 1.",
        formatter_class=HelpFormatter,
    )
    health.add_argument(
        "address", nargs="?", default=DEFAULT_ADDRESS, metavar="HOST:PORT", help="whom to ask"
    )
    health.add_argument(
        "--timeout", type=not_negative, default=5.0, metavar="S", help="seconds to wait for it"
    )
    add_credentials(health)
    add_export(commands)
    add_conformance(commands)
    add_issuing(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    arguments = build_parser().parse_args(argv)
    try:
        if arguments.command == "health":
            return asyncio.run(_health(arguments))
        if arguments.command in ("doctor", "export-onnx") and arguments.model is not None:
            check_name(arguments.model)  # before torch is imported, which takes seconds
        if arguments.command == "doctor":
            from cloud_verifier.logs import leave_out_chatter

            leave_out_chatter()  # of which some comes with the imports
            with QuietInterrupt():
                from cloud_verifier.doctor import doctor

            return doctor(arguments)
        if arguments.command in ("keys", "certs"):
            return issue(arguments)
        if arguments.command == "conformance":
            with QuietInterrupt():
                from cloud_verifier.conformance import run

            return run.command(arguments)
        if arguments.command == "export-onnx":
            with QuietInterrupt():
                from cloud_verifier import export

            return export.command(arguments)
        with QuietInterrupt():
            from cloud_verifier.serve import serve

        return serve(arguments)
    except DraftwireError as error:
        print(f"draftwire-verifier: {error.code}: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        missing = MissingDependency(
            f"{error.name} is not installed", remedy="pip install 'draftwire[cloud]'"
        )
        print(f"draftwire-verifier: {missing.code}: {missing}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


async def _health(arguments: argparse.Namespace) -> int:
    import grpc
    import grpc.aio
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    known, address = credentials(arguments), arguments.address
    if known.secures(address):
        channel = grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(*known.files()))
    else:
        channel = grpc.aio.insecure_channel(address)
    async with channel:
        try:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=arguments.timeout)
        except grpc.aio.AioRpcError as error:
            if failure := tls_failure(address, error.details() or ""):
                raise failure from error
            print(f"{address}: {error.code().name}: {error.details()}")
            print("start one with draftwire-verifier serve, or check the address", file=sys.stderr)
            return 1
    serving = answer.status == health_pb2.HealthCheckResponse.SERVING
    print(f"{address}: {'serving' if serving else 'not serving'}")
    return 0 if serving else 1
