"""`draftwire-verifier serve`: from the command's arguments to a verifier that serves."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ipaddress
import logging
import math
import signal
import socket
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cloud_verifier.engine import Engine, EngineConfig
from cloud_verifier.logs import configure
from cloud_verifier.server import VerifierServer
from cloud_verifier.target import TargetModel
from cloud_verifier.tracing import exporting
from draftwire.errors import InvalidRequest

if TYPE_CHECKING:
    from cloud_verifier.metrics import PrometheusObserver

logger = logging.getLogger(__name__)


def serve(arguments: argparse.Namespace) -> int:
    """Load the target and serve it until stopped by a signal; returns the exit status."""
    configure(arguments.log_level, arguments.log_format)
    _check_address("--listen", arguments.listen, insecure=arguments.insecure)
    if arguments.metrics:
        _check_address("--metrics", arguments.metrics, insecure=arguments.insecure)
    started = time.monotonic()
    # Loading takes long and holds the thread, so that it is done before the event loop would
    # put signals off until its end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with _metrics(arguments.metrics) as observer:
        config = EngineConfig(
            max_sessions=arguments.max_sessions,
            max_batch_tokens=arguments.max_batch_tokens,
            session_ttl_s=arguments.session_ttl,
            max_silence_s=arguments.max_silence,
            max_generation_s=arguments.max_generation_time or math.inf,
        )
        engine = Engine(_load(arguments), config, observer=observer)
        if observer is not None:
            observer.watch(engine)
        return asyncio.run(_until_stopped(engine, arguments, started))


async def _until_stopped(engine: Engine, arguments: argparse.Namespace, started: float) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop(number: signal.Signals) -> None:
        stopping.set()
        loop.remove_signal_handler(number)  # the second of a kind ends us at once

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    async with contextlib.AsyncExitStack() as stack:
        tracer = stack.enter_context(exporting(arguments.otlp)) if arguments.otlp else None
        server = VerifierServer(engine, arguments.listen, grace_s=arguments.grace, tracer=tracer)
        await stack.enter_async_context(server)
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
        logger.info("metrics on http://%s/metrics", address)
        yield observer


def _load(arguments: argparse.Namespace) -> TargetModel:
    if arguments.model == "table":
        from cloud_verifier.table_target import TableTarget
        from draftwire.testing.table import TableModel

        model = TableModel(vocabulary_size=320, eos_rate=0.01)
        return TableTarget(model, num_blocks=-(-arguments.kv_tokens // 16))
    from cloud_verifier.hf_target import HFTarget

    target = HFTarget.load(
        arguments.model,
        kv_tokens=arguments.kv_tokens,
        dtype=arguments.dtype,
        device=arguments.device,
        quantize=arguments.quantize,
        trust_remote_code=arguments.trust_remote_code,
        threads=arguments.threads,
        deterministic=arguments.deterministic,
        max_context=arguments.max_context,
        name=arguments.name,
        attention=arguments.attention,
        cuda_graphs=arguments.cuda_graphs,
    )
    target.warm_up(max_batch_tokens=arguments.max_batch_tokens)
    return target


def _check_address(option: str, listen: str, *, insecure: bool) -> None:
    """Raise `InvalidRequest` for an address that can't or must not be listened on.

    Loading a model takes long: what can be known before is said before.
    """
    host, colon, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isdigit() and int(port) < 2**16):
        raise InvalidRequest(f"{listen!r} is no address", remedy=f"give {option} HOST:PORT")
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
            f"can't listen on {listen}: {error.strerror}", remedy=f"give another {option} HOST:PORT"
        ) from error
