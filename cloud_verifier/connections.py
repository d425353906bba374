"""Bounds on connections and their calls, whoever makes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import grpc.aio
from grpc_health.v1 import health

from cloud_verifier.pace import PeerPace

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionBounds:
    """Bounds on what is connected, whether it is let in or not.

    At most `max_connections` at once, each with up to `streams_each` streams, and `max_calls` in
    all. A connection may make `calls_at_once` calls, then `calls_per_s`; more wait. One that has
    not said in `greet_within_s` seconds that it speaks HTTP/2 is closed, as is one without a
    stream for `idle_s`.
    """

    max_connections: int = 512
    streams_each: int = 128
    max_calls: int = 8192
    calls_at_once: int = 128
    calls_per_s: float = 32.0
    greet_within_s: float = 10.0
    idle_s: float = 300.0

    def options(self) -> list[tuple[str, int]]:
        """Those that gRPC holds, by its names."""
        return [
            ("grpc.max_allowed_incoming_connections", self.max_connections),
            ("grpc.max_concurrent_streams", self.streams_each),
            ("grpc.server_handshake_timeout_ms", round(self.greet_within_s * 1000)),
            ("grpc.max_connection_idle_ms", round(self.idle_s * 1000)),
        ]


class PacedHealth(health.aio.HealthServicer):
    """Health for whoever may connect, at a pace."""

    def __init__(self, pace: PeerPace) -> None:
        super().__init__()
        self._pace = pace

    async def Check(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Whether it is serving."""
        await self._pace.turn(context.peer())
        return await super().Check(request, context)

    async def Watch(self, request: Any, context: Context) -> None:  # noqa: N802
        """Whether it is serving, now and whenever that changes."""
        await self._pace.turn(context.peer())
        await super().Watch(request, context)
