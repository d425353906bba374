"""`draftwire-verifier serve`: from the command's arguments to a verifier that serves."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import logging
import math
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from cloud_verifier.auth import Keys
from cloud_verifier.connections import ConnectionBounds
from cloud_verifier.engine import Engine, EngineConfig
from cloud_verifier.logs import configure
from cloud_verifier.model_name import check_name
from cloud_verifier.server import VerifierServer
from cloud_verifier.target import TargetModel
from cloud_verifier.tls import TlsFiles
from cloud_verifier.tracing import exporting
from draftwire.addresses import split_address, stays_here
from draftwire.errors import InvalidRequest
from draftwire.interrupts import QuietInterrupt
from draftwire.reason import reason

if TYPE_CHECKING:
    from cloud_verifier.metrics import PrometheusObserver

logger = logging.getLogger(__name__)

TABLE = "table"
"""Names the toy model."""

_OTHER_FILES = 256  # that a verifier may have open beside its connections


def serve(arguments: argparse.Namespace) -> int:
    """Load the target and serve it until stopped by a signal; returns the exit status."""
    configure(arguments.log_level, arguments.log_format)
    tls = _tls(arguments)
    keys = None if arguments.keys is None else Keys(arguments.keys)
    _check_address("--listen", arguments.listen, safe=arguments.insecure or tls is not None)
    if arguments.metrics:
        _check_address("--metrics", arguments.metrics, safe=arguments.insecure)
    if arguments.model != TABLE:
        check_name(arguments.model)  # before torch is imported, which takes seconds
    started = time.monotonic()
    # Loading takes long and holds the thread, so that it is done before the event loop would
    # put signals off until its end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if arguments.until_stdin_ends:
        threading.Thread(target=_stop_at_end, args=(sys.stdin.fileno(),), daemon=True).start()
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
        server = functools.partial(
            VerifierServer,
            engine,
            arguments.listen,
            tls=tls,
            keys=keys,
            connections=_connections(arguments.max_connections, arguments.max_sessions),
            grace_s=arguments.grace,
        )
        return asyncio.run(_until_stopped(server, arguments, started))


def _stop_at_end(descriptor: int) -> None:
    """Read to the end, and then stop as if told to."""
    # Not through `sys.stdin`: a thread that holds its lock keeps the interpreter from ending.
    while os.read(descriptor, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


async def _until_stopped(
    make: Callable[..., VerifierServer], arguments: argparse.Namespace, started: float
) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop(number: signal.Signals) -> None:
        stopping.set()
        loop.remove_signal_handler(number)  # the second of a kind ends us at once

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    async with contextlib.AsyncExitStack() as stack:
        tracer = stack.enter_context(exporting(arguments.otlp)) if arguments.otlp else None
        server = await stack.enter_async_context(make(tracer=tracer))
        ready = time.monotonic() - started
        name = server.engine.card.target.model
        print(f"serving {name} on {server.address} (ready after {ready:.1f} s)", flush=True)
        failed = asyncio.create_task(server.wait())
        await asyncio.wait(
            [failed, asyncio.create_task(stopping.wait())], return_when=asyncio.FIRST_COMPLETED
        )
        if failed.done():
            await failed
        failed.cancel()
        if running := len(server.engine.active):
            logger.warning(
                "stopping: %d generation%s at work, which may take %g s to end; interrupt again "
                "not to wait",
                running,
                " is" if running == 1 else "s are",
                arguments.grace,
            )
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
    if arguments.model == TABLE:
        from cloud_verifier.table_target import TableTarget
        from draftwire.testing.table import TableModel

        model = TableModel(vocabulary_size=320, eos_rate=0.01)
        return TableTarget(model, num_blocks=-(-arguments.kv_tokens // 16))
    from cloud_verifier.heap import return_large_blocks

    with QuietInterrupt():
        from cloud_verifier.hf_target import HFTarget

    return_large_blocks()
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


def _tls(arguments: argparse.Namespace) -> TlsFiles | None:
    """The certificates to serve with, if any. Raises `InvalidRequest` for half of them."""
    certificate, key, client_ca = arguments.tls_cert, arguments.tls_key, arguments.client_ca
    if certificate is None and key is None and client_ca is None:
        return None
    if certificate is None or key is None:
        raise InvalidRequest(
            "TLS needs a certificate and its key", remedy="give both --tls-cert and --tls-key"
        )
    return TlsFiles(
        certificate=Path(certificate),
        key=Path(key),
        client_ca=None if client_ca is None else Path(client_ca),
    )


def _connections(most: int, sessions: int) -> ConnectionBounds:
    """Bounds that let one connection, as of a gateway, have all sessions.

    Raises `InvalidRequest` for more connections than this process may have files open.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = most + _OTHER_FILES
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise InvalidRequest(
            f"{most} connections take {needed} open files, and this process may have {hard}",
            remedy="give fewer --max-connections, or raise the limit (ulimit -n)",
        )
    if soft != resource.RLIM_INFINITY and needed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return ConnectionBounds(
        max_connections=most,
        streams_each=max(128, 2 * sessions),
        max_calls=max(8192, 4 * sessions),
        calls_at_once=max(128, 2 * sessions),
        calls_per_s=max(32.0, sessions / 2),
    )


def _check_address(option: str, listen: str, *, safe: bool) -> None:
    """Raise `InvalidRequest` for an address that can't or must not be listened on.

    Loading a model takes long: what can be known before is said before.
    """
    try:
        host, port = split_address(listen, lowest_port=0)
    except InvalidRequest as error:
        raise InvalidRequest(error.message, remedy=f"give {option} HOST:PORT") from error
    if not safe and not stays_here(listen):
        raise InvalidRequest(
            f"others can reach {host}, and the traffic would be plaintext",
            remedy="give --tls-cert and --tls-key (metrics have none), listen on 127.0.0.1, or "
            "pass --insecure",
        )
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise InvalidRequest(
            f"can't listen on {listen}: {reason(error)}", remedy=f"give another {option} HOST:PORT"
        ) from error
