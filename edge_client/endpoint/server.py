"""Runs the application on a socket until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn
from starlette.types import ASGIApp

from draftwire.addresses import split_address, stays_here
from draftwire.errors import InvalidRequest, LinkNotSecure, Unavailable
from draftwire.reason import reason
from edge_client.client import AsyncEdgeClient
from edge_client.endpoint.app import MAX_REQUESTS, Endpoint, build_app

GRACE_S = 2
"""Seconds that requests under way are given when the server is to stop."""


def bind(address: str, *, expose: bool = False) -> socket.socket:
    """A listening socket at `HOST:PORT`; with port 0 at a free one.

    Raises `LinkNotSecure` for an address that others can reach unless told to `expose` it, and
    `InvalidRequest` for one that can't be had.
    """
    host, port = split_address(address, lowest_port=0)
    if not stays_here(address) and not expose:
        raise LinkNotSecure(
            f"others could reach the endpoint at {address}, which knows no keys and no TLS",
            remedy="listen on 127.0.0.1, or say --expose",
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise InvalidRequest(
            f"can't listen on {address}: {reason(error)}", remedy="give another --listen"
        ) from error


class Server(uvicorn.Server):
    """Leaves signals to whoever runs it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield

    def stop(self) -> None:
        """End `serve` when the requests under way have ended, or their time is up."""
        self.should_exit = True


def server_of(app: ASGIApp) -> Server:
    """A server of the application, for its `serve`."""
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
    )
    return Server(config)


async def serve(
    make_client: Callable[[], AsyncEdgeClient],
    listening: socket.socket,
    *,
    name: str | None = None,
    max_requests: int = MAX_REQUESTS,
    expose: bool = False,
    ready: Callable[[str, str], None],
) -> None:
    """Serve until SIGINT or SIGTERM. `ready` is told the URL, and the model's name.

    The name is empty while the verifier can't be reached: requests are refused until it can.
    """
    host, port = listening.getsockname()[:2]
    async with make_client() as client:
        try:
            card = await client.card()
            served = name or card.target.model
        except Unavailable:
            served = ""
        hosts = () if expose else ("localhost", "127.0.0.1", "::1", host)
        endpoint = Endpoint(client, name=name, max_requests=max_requests)
        server = server_of(build_app(endpoint, hosts))
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, server.stop)
        ready(f"http://{f'[{host}]' if ':' in host else host}:{port}", served)
        await server.serve(sockets=[listening])
