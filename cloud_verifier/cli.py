"""`draftwire-verifier`: serve a target model, or ask a verifier how it is."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ipaddress
import logging
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from draftwire import __version__
from draftwire.commands import HelpFormatter, not_negative, positive
from draftwire.errors import DraftwireError, InvalidRequest
from draftwire.types import DEFAULT_ADDRESS

if TYPE_CHECKING:
    from cloud_verifier.engine import Engine

_EPILOG = """\
examples:
  draftwire-verifier serve --model SmolLM2-135M-Instruct.Q4_1.gguf
  draftwire-verifier serve --model google/gemma-2-9b-it --dtype bfloat16 --device cuda \\
      --listen 0.0.0.0:7433 --insecure --kv-tokens 200000
  draftwire-verifier health 127.0.0.1:7433

`serve` prints one line on stdout when it is ready; everything else goes to stderr. SIGTERM and
Ctrl-C let generations finish for --grace seconds, hand the rest back to their clients, exit 0;
the second of a kind ends it at once.
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
    model.add_argument(
        "--threads",
        type=positive,
        metavar="N",
        help="CPU threads of the model (default: one for each core)",
    )
    serving = serve.add_argument_group("serving")
    serving.add_argument(
        "--listen", default=DEFAULT_ADDRESS, metavar="HOST:PORT", help="0: any port"
    )
    serving.add_argument(
        "--insecure",
        action="store_true",
        help="allow plaintext on an address that others can reach",
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
        "--grace",
        type=not_negative,
        default=10.0,
        metavar="S",
        help="seconds to finish in when stopped",
    )
    serving.add_argument(
        "--log-level",
        default="info",
        choices=["debug", "info", "warning", "error"],
        help="least severe messages to log",
    )

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
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    arguments = build_parser().parse_args(argv)
    try:
        if arguments.command == "health":
            return asyncio.run(_health(arguments))
        return _serve(arguments)
    except DraftwireError as error:
        print(f"draftwire-verifier: {error.code}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _serve(arguments: argparse.Namespace) -> int:
    logging.basicConfig(
        level=arguments.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    _check_address(arguments.listen, insecure=arguments.insecure)
    started = time.monotonic()
    # Loading takes long and holds the thread, so that it is done before the event loop would
    # put signals off until its end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    engine = _load(arguments)
    return asyncio.run(_serve_until_stopped(engine, arguments, started))


async def _serve_until_stopped(
    engine: Engine, arguments: argparse.Namespace, started: float
) -> int:
    from cloud_verifier.server import VerifierServer

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop(number: signal.Signals) -> None:
        stopping.set()
        loop.remove_signal_handler(number)  # the second of a kind ends us at once

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    async with VerifierServer(engine, arguments.listen, grace_s=arguments.grace) as server:
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


def _load(arguments: argparse.Namespace) -> Engine:
    from cloud_verifier.engine import Engine, EngineConfig
    from cloud_verifier.target import TargetModel

    config = EngineConfig(
        max_sessions=arguments.max_sessions,
        max_batch_tokens=arguments.max_batch_tokens,
        session_ttl_s=arguments.session_ttl,
    )
    target: TargetModel
    if arguments.model == "table":
        from cloud_verifier.table_target import TableTarget
        from draftwire.testing.table import TableModel

        model = TableModel(vocabulary_size=320, eos_rate=0.01)
        target = TableTarget(model, num_blocks=-(-arguments.kv_tokens // 16))
    else:
        from cloud_verifier.hf_target import HFTarget

        target = HFTarget.load(
            arguments.model,
            kv_tokens=arguments.kv_tokens,
            dtype=arguments.dtype,
            device=arguments.device,
            threads=arguments.threads,
            max_context=arguments.max_context,
            name=arguments.name,
        )
    return Engine(target, config)


def _check_address(listen: str, *, insecure: bool) -> None:
    """Raise `InvalidRequest` for an address that can't or must not be listened on.

    Loading a model takes long: what can be known before is said before.
    """
    host, colon, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isdigit() and int(port) < 2**16):
        raise InvalidRequest(f"{listen!r} is no address", remedy="give --listen HOST:PORT")
    local = host == "localhost"
    with contextlib.suppress(ValueError):
        local = local or ipaddress.ip_address(host).is_loopback
    if not local and not insecure:
        raise InvalidRequest(
            f"others can reach {host}, and the traffic would be plaintext",
            remedy="listen on 127.0.0.1 behind a TLS proxy, or pass --insecure",
        )
    try:
        family, *_, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise InvalidRequest(
            f"can't listen on {listen}: {error.strerror}", remedy="give another --listen HOST:PORT"
        ) from error


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
