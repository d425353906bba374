"""The verifier as a gRPC server: `draftwire.v1.Verifier`, health and reflection."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from cloud_verifier.auth import Keys
from cloud_verifier.connections import ConnectionBounds, Context, PacedHealth
from cloud_verifier.engine import Engine
from cloud_verifier.gate import Caller, Gate
from cloud_verifier.pace import PeerPace
from cloud_verifier.refusal import abort
from cloud_verifier.service import VerifierService
from cloud_verifier.tls import TlsFiles, server_credentials
from cloud_verifier.tracing import traced
from draftwire import codec
from draftwire.credentials import check_padding
from draftwire.errors import DraftwireError, InvalidRequest, ModelNotFound, Unauthenticated
from draftwire.types import MAX_FRAME_BYTES, ClientFrame
from draftwire.v1 import verifier_pb2 as pb
from draftwire.v1 import verifier_pb2_grpc as rpc

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

logger = logging.getLogger(__name__)

SERVICE_NAME: str = pb.DESCRIPTOR.services_by_name["Verifier"].full_name
_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", MAX_FRAME_BYTES),
    # What a stream sends beyond its pace is held by gRPC, where a small frame takes many times its
    # size: no more of it than 64 KiB, however much the network could bring.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.so_reuseport", 0),  # a second server on the port must fail, not share it
    # Devices ping to keep mobile networks from dropping an idle connection; see the client.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
]


class VerifierServicer(rpc.VerifierServicer):
    """Messages in, messages out; all else is the service's."""

    def __init__(
        self, service: VerifierService, gate: Gate, pace: PeerPace, tracer: Tracer | None = None
    ) -> None:
        self._service = service
        self._gate = gate
        self._pace = pace
        self._observer = service.engine.observer
        self._tracer = tracer

    async def Decode(  # noqa: N802 (named by the contract)
        self, request_iterator: AsyncIterator[pb.ClientFrame], context: Context
    ) -> AsyncIterator[pb.ServerFrame]:
        """One generation."""
        caller = await self._admit(context)
        metadata = tuple(context.invocation_metadata() or ())
        try:
            padding = _padding(metadata)
        except InvalidRequest as error:
            await self._refuse(context, error)
        frames = self._frames(request_iterator, caller)
        decode = functools.partial(self._service.decode, owner=caller.owner, account=caller.account)
        if self._tracer is None:
            answers = decode(frames)
        else:
            answers = traced(decode, frames, self._tracer, metadata)
        try:
            async with contextlib.aclosing(answers):
                async for answer in answers:
                    message = codec.encode_server(answer)
                    codec.pad(message, padding)
                    self._observer.sent(message.WhichOneof("frame") or "", message.ByteSize())
                    yield message
        except DraftwireError as error:
            await abort(context, error)

    async def DescribeModel(  # noqa: N802
        self, request: pb.DescribeModelRequest, context: Context
    ) -> pb.ModelCard:
        """What is served."""
        await self._admit(context)
        card = self._service.engine.card
        if request.model not in ("", card.target.model):
            await self._refuse(
                context,
                ModelNotFound(
                    f"model {request.model!r} is not served here",
                    remedy=f"ask for {card.target.model!r}",
                ),
            )
        return codec.encode_card(card)

    async def _admit(self, context: Context) -> Caller:
        """Who calls. Nothing is done for whom the gate does not know."""
        await self._pace.turn(context.peer())
        try:
            return self._gate.admit(context.invocation_metadata() or (), context.auth_context())
        except Unauthenticated as error:
            await self._refuse(context, error)

    async def _refuse(self, context: Context, error: DraftwireError) -> NoReturn:
        """Refuse a call that the service has not heard of.

        Of what was sent nothing is logged: a wrong key may be a right one with a slip in it.
        """
        self._observer.refused(error.code)
        logger.warning("refused %s", context.peer(), extra={"code": error.code})
        await abort(context, error)

    async def _frames(
        self, messages: AsyncIterator[pb.ClientFrame], caller: Caller
    ) -> AsyncIterator[ClientFrame]:
        async for message in messages:
            self._gate.recheck(caller)
            self._observer.received(message.WhichOneof("frame") or "", message.ByteSize())
            yield codec.decode_client(message)


def _padding(metadata: Sequence[tuple[str, str | bytes]]) -> int:
    """The multiple of bytes that frames are to be padded to; 0 if the client doesn't say.

    Raises `InvalidRequest` for one that is none.
    """
    asked = dict(metadata).get("draftwire-padding", "0")
    try:
        multiple = int(asked)
    except ValueError:
        raise InvalidRequest(f"draftwire-padding is {asked!r}, which is no number") from None
    check_padding(multiple)
    return multiple


class VerifierServer:
    """A verifier on a socket. Use as an async context manager, or `start()` and `stop()`.

    `listen` is `HOST:PORT`; port 0 takes a free one, which `address` then names. Without `tls`
    it speaks plaintext, without `keys` it serves whoever connects. With a `tracer` every stream
    has a span.
    """

    def __init__(
        self,
        engine: Engine,
        listen: str,
        *,
        tls: TlsFiles | None = None,
        keys: Keys | None = None,
        connections: ConnectionBounds | None = None,
        grace_s: float = 10.0,
        tracer: Tracer | None = None,
    ) -> None:
        self.engine = engine
        self._tls = tls
        self._gate = Gate(keys)
        self._connections = connections or ConnectionBounds()
        self._tracer = tracer
        self.address = listen
        self._grace_s = grace_s

    async def start(self) -> None:
        """Listen and serve. Raises `InvalidRequest` if the address can't be had."""
        self._service = VerifierService(self.engine)
        bounds = self._connections
        observer = self.engine.observer
        pace = PeerPace(
            bounds.calls_at_once, bounds.calls_per_s, time.monotonic, observer.connected
        )
        self._health = PacedHealth(pace)
        self._server = grpc.aio.server(
            options=[*_OPTIONS, *bounds.options()], maximum_concurrent_rpcs=bounds.max_calls
        )
        rpc.add_VerifierServicer_to_server(
            VerifierServicer(self._service, self._gate, pace, self._tracer), self._server
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if not self._gate.asks:
            names = (SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, self._server)
        host, _, _ = self.address.rpartition(":")
        try:
            if self._tls is None:
                port = self._server.add_insecure_port(self.address)
            else:
                credentials = server_credentials(self._tls, observer.handshake)
                port = self._server.add_secure_port(self.address, credentials)
        except RuntimeError as error:
            await self._server.stop(None)
            raise InvalidRequest(
                f"can't listen on {self.address}",
                remedy="it may be in use; give another --listen HOST:PORT",
            ) from error
        self.address = f"{host}:{port}"
        self._running = asyncio.create_task(self._service.run())
        await self._server.start()
        await self._announce(health_pb2.HealthCheckResponse.SERVING)

    async def wait(self) -> None:
        """Return when the engine has stopped, which by itself it does only by a fault."""
        await asyncio.wait([self._running])
        if not self._running.cancelled() and (error := self._running.exception()) is not None:
            raise error

    async def stop(self) -> None:
        """Admit nothing new, finish or hand back what is in flight, and leave nothing behind."""
        await self._announce(health_pb2.HealthCheckResponse.NOT_SERVING)
        await self._service.drain(self._grace_s)
        await self._server.stop(1.0)
        self._running.cancel()
        await asyncio.wait([self._running])
        self._service.close()

    async def _announce(self, status: int) -> None:
        for name in ("", SERVICE_NAME):
            await self._health.set(name, status)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()
