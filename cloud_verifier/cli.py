"""`draftwire-verifier`: serve a target model, or ask a verifier how it is."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ipaddress
import logging
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from cloud_verifier.logs import configure
from cloud_verifier.tracing import exporting
from draftwire import __version__
from draftwire.errors import DraftwireError, InvalidRequest
from draftwire.types import DEFAULT_ADDRESS

if TYPE_CHECKING:
    from cloud_verifier.engine import EngineConfig
    from cloud_verifier.metrics import PrometheusObserver
    from cloud_verifier.target import TargetModel

_EPILOG = """\
examples:
  draftwire-verifier serve --model SmolLM2-135M-Instruct.Q4_1.gguf
  draftwire-verifier serve --model google/gemma-2-9b-it --dtype bfloat16 --device cuda \\
      --listen 0.0.0.0:7433 --insecure --kv-tokens 200000
  draftwire-verifier health 127.0.0.1:7433

`serve` prints one line on stdout when it is ready; everything else goes to stderr. SIGTERM and
Ctrl-C let generations finish for --grace seconds, hand the rest back to their clients, exit 0.
"""


def build_parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    parser = argparse.ArgumentParser(
        prog="draftwire-verifier",
        description="The cloud side of Draftwire: checks the drafts of many devices in batched "
        "passes of one target model.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"draftwire {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    serve = commands.add_parser(
        "serve",
        help="serve a target model over gRPC",
        description="Serve a target model over gRPC.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    model = serve.add_argument_group("model")
    model.add_argument(
        "--model",
        required=True,
        metavar="DIR|FILE.gguf|HUB-ID|table",
        help="a Hugging Face directory, a GGUF file (converted once to full precision and cached), "
        "a model hub id, or 'table', a toy model for trying the wire",
    )
    model.add_argument("--name", help="name to serve it under (default: from the model)")
    model.add_argument(
        "--dtype",
        default="auto",
        choices=["auto", "float32", "bfloat16", "float16"],
        help="floating-point type of the weights; auto: bfloat16 on a GPU, float32 on a CPU",
    )
    model.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    model.add_argument("--threads", type=int, metavar="N", help="CPU threads of the model")
    serving = serve.add_argument_group("serving")
    serving.add_argument(
        "--listen", default=DEFAULT_ADDRESS, metavar="HOST:PORT", help="0: any port"
    )
    serving.add_argument(
        "--insecure",
        action="store_true",
        help="allow plaintext on an address that others can reach",
    )
    serving.add_argument("--max-sessions", type=int, default=64, help="generations at once")
    serving.add_argument(
        "--kv-tokens", type=int, default=32768, help="KV memory, tokens over all sessions"
    )
    serving.add_argument("--max-context", type=int, metavar="N", help="longest text of a session")
    serving.add_argument(
        "--max-batch-tokens", type=int, default=512, help="tokens of one pass over all sessions"
    )
    serving.add_argument(
        "--session-ttl",
        type=float,
        default=600.0,
        metavar="S",
        help="seconds an idle session stays",
    )
    serving.add_argument(
        "--grace", type=float, default=10.0, metavar="S", help="seconds to finish in when stopped"
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
        "--log-level", default="info", choices=["debug", "info", "warning", "error"]
    )
    watching.add_argument("--log-format", default="text", choices=["text", "json"])

    health = commands.add_parser(
        "health",
        help="exit 0 if a verifier is serving",
        description="Exit 0 if the verifier at ADDRESS is serving, else 1.",
    )
    health.add_argument("address", nargs="?", default=DEFAULT_ADDRESS, metavar="HOST:PORT")
    health.add_argument("--timeout", type=float, default=5.0, metavar="S")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    arguments = build_parser().parse_args(argv)
    try:
        if arguments.command == "health":
            return asyncio.run(_health(arguments))
        return asyncio.run(_serve(arguments))
    except DraftwireError as error:
        print(f"draftwire-verifier: {error.code}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


async def _serve(arguments: argparse.Namespace) -> int:
    configure(arguments.log_level, arguments.log_format)
    _check_address("--listen", arguments.listen, insecure=arguments.insecure)
    if arguments.metrics:
        _check_address("--metrics", arguments.metrics, insecure=arguments.insecure)
    started = time.monotonic()
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    from cloud_verifier.engine import Engine
    from cloud_verifier.server import VerifierServer

    async with contextlib.AsyncExitStack() as stack:
        observer = stack.enter_context(_metrics(arguments.metrics))
        tracer = stack.enter_context(exporting(arguments.otlp)) if arguments.otlp else None
        engine = Engine(_load(arguments), _config(arguments), observer=observer)
        if observer is not None:
            observer.watch(engine)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
        server = await stack.enter_async_context(
            VerifierServer(engine, arguments.listen, grace_s=arguments.grace, tracer=tracer)
        )
        ready = time.monotonic() - started
        name = engine.card.target.model
        print(f"serving {name} on {server.address} (ready after {ready:.1f} s)", flush=True)
        failed = asyncio.create_task(server.wait())
        await asyncio.wait(
            [failed, asyncio.create_task(stopping.wait())], return_when=asyncio.FIRST_COMPLETED
        )
        if failed.done():
            await failed
        failed.cancel()
    return 0


@contextlib.contextmanager
def _metrics(listen: str | None) -> Iterator[PrometheusObserver | None]:
    if listen is None:
        yield None
        return
    from cloud_verifier.metrics import PrometheusObserver, serving

    observer = PrometheusObserver()
    with serving(observer.registry, listen) as address:
        logging.info("metrics on http://%s/metrics", address)
        yield observer


def _config(arguments: argparse.Namespace) -> EngineConfig:
    from cloud_verifier.engine import EngineConfig

    return EngineConfig(
        max_sessions=arguments.max_sessions,
        max_batch_tokens=arguments.max_batch_tokens,
        session_ttl_s=arguments.session_ttl,
    )


def _load(arguments: argparse.Namespace) -> TargetModel:
    if arguments.model == "table":
        from cloud_verifier.table_target import TableTarget
        from draftwire.testing.table import TableModel

        model = TableModel(vocabulary_size=320, eos_rate=0.01)
        return TableTarget(model, num_blocks=-(-arguments.kv_tokens // 16))

    from cloud_verifier.hf_target import HFTarget

    logging.info("loading %s", arguments.model)
    return HFTarget.load(
        arguments.model,
        kv_tokens=arguments.kv_tokens,
        dtype=arguments.dtype,
        device=arguments.device,
        threads=arguments.threads,
        max_context=arguments.max_context,
        name=arguments.name,
        progress=logging.getLogger("cloud_verifier").info,
    )


def _check_address(option: str, listen: str, *, insecure: bool) -> None:
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdigit():
        raise InvalidRequest(f"{listen!r} is no address", remedy=f"give {option} HOST:PORT")
    local = host == "localhost"
    with contextlib.suppress(ValueError):
        local = local or ipaddress.ip_address(host.strip("[]")).is_loopback
    if not local and not insecure:
        raise InvalidRequest(
            f"others can reach {host}, and the traffic would be plaintext",
            remedy="listen on 127.0.0.1 behind a TLS proxy, or pass --insecure",
        )


async def _health(arguments: argparse.Namespace) -> int:
    import grpc
    import grpc.aio
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    async with grpc.aio.insecure_channel(arguments.address) as channel:
        try:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=arguments.timeout)
        except grpc.aio.AioRpcError as error:
            print(f"{arguments.address}: {error.code().name}: {error.details()}")
            return 1
    serving = answer.status == health_pb2.HealthCheckResponse.SERVING
    print(f"{arguments.address}: {'serving' if serving else 'not serving'}")
    return 0 if serving else 1
