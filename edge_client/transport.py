"""The wire as a session sees it, over gRPC.

`Transport` and `Link` are what a session needs; tests run it over a link in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
import grpc.aio

from draftwire import codec
from draftwire.addresses import UNIX, split_address, stays_here
from draftwire.credentials import Credentials, tls_failure
from draftwire.errors import (
    DraftwireError,
    InvalidRequest,
    LinkLost,
    LinkNotSecure,
    PromptTooLong,
    from_wire,
)
from draftwire.types import MAX_FRAME_BYTES, ClientFrame, Draft, ModelCard, ServerFrame, Verdict
from draftwire.v1 import verifier_pb2 as pb
from draftwire.v1 import verifier_pb2_grpc as rpc

_SEND_FAILED = "Internal error from Core"
# How long a verifier may say nothing though its network answers, as one that hangs does. The first
# frame comes between two passes, others may have a long prompt before them.
_FIRST_WITHIN_S = 60.0
_NEXT_WITHIN_S = 300.0
_STATUS_POLLS = 100
_STATUS_POLL_S = 0.01

_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_send_message_length", MAX_FRAME_BYTES),
    ("grpc.max_receive_message_length", MAX_FRAME_BYTES),
    # Mobile networks drop what is silent for a minute; servers tolerate this pace (see theirs).
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Rules of our own say what may be sent again (docs/protocol.md).
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5_000),
]


@dataclass(slots=True)
class WireBytes:
    """Payload bytes of a generation's frames: drafts and verdicts, and all others."""

    drafts_up: int = 0
    verdicts_down: int = 0
    other_up: int = 0
    other_down: int = 0

    @property
    def up(self) -> int:
        """All that was sent."""
        return self.drafts_up + self.other_up

    @property
    def down(self) -> int:
        """All that was received."""
        return self.verdicts_down + self.other_down


class Link(Protocol):
    """One open stream."""

    async def send(self, frame: ClientFrame) -> None:
        """Send a frame. On a stream that has ended it is lost: `receive` says why it ended.

        Raises `PromptTooLong` for a history that no frame can hold.
        """
        ...

    async def receive(self) -> ServerFrame:
        """The next frame. Raises the verifier's error, or `LinkLost` at the stream's end."""
        ...


class Transport(Protocol):
    """Opens streams to a verifier."""

    async def describe(self) -> ModelCard:
        """What the verifier serves."""
        ...

    def connect(self, count: WireBytes) -> contextlib.AbstractAsyncContextManager[Link]:
        """A new stream, closed on leaving; adds its payload to `count`."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


class GrpcTransport:
    """A connection to the verifier at `address` (`HOST:PORT`, or `unix:PATH`).

    TLS if it leaves this machine; see `Credentials`. Every call names the transport, by a number
    that it draws, so that a proxy can send them all to one of several verifiers. Raises
    `InvalidRequest` for an address of another form. Belongs to the event loop it is first used on.
    `timeout_s` bounds unary calls. Once closed it is not used again.
    """

    def __init__(
        self, address: str, credentials: Credentials | None = None, *, timeout_s: float = 10.0
    ) -> None:
        if not address.startswith(UNIX):
            split_address(address)
        self.address = address
        self._credentials = credentials or Credentials()
        self._secure = self._credentials.secures(address)
        # gRPC would take even loopback to the environment's HTTP proxy, and plaintext with it.
        self._options = [*_OPTIONS, *([("grpc.enable_http_proxy", 0)] * stays_here(address))]
        self._headers = (("draftwire-client", secrets.token_hex(8)), *self._credentials.metadata)
        self._timeout_s = timeout_s
        self._channel: grpc.aio.Channel | None = None
        self._closed = False

    def _stub(self) -> rpc.VerifierAsyncStub:
        if self._closed:
            raise InvalidRequest("the connection is closed", remedy="make a new one")
        if self._channel is None:
            if self._secure:
                files = self._credentials.files()
                self._channel = grpc.aio.secure_channel(
                    self.address, grpc.ssl_channel_credentials(*files), options=self._options
                )
            else:
                self._channel = grpc.aio.insecure_channel(self.address, options=self._options)
        return rpc.VerifierStub(self._channel)

    async def describe(self) -> ModelCard:
        """What the verifier serves.

        Raises `LinkLost` if it can't be reached in time, `LinkNotSecure` if it can't be trusted.
        """
        try:
            card = await self._stub().DescribeModel(
                pb.DescribeModelRequest(), timeout=self._timeout_s, metadata=self._headers
            )
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise self._unreachable(f"no answer in {self._timeout_s} s") from error
            raise self._error(error) from error
        return codec.decode_card(card)

    @contextlib.asynccontextmanager
    async def connect(self, count: WireBytes) -> AsyncIterator[Link]:
        """A new stream, cancelled on leaving if it has not ended."""
        metadata = (*_trace_context(), *self._headers)
        call = self._stub().Decode(metadata=metadata)
        link = _GrpcLink(call, count, self._credentials.padding, self._error)
        del call  # errors hold the frames they came through: none may hold the connection
        try:
            yield link
        finally:
            await link.leave()

    async def close(self) -> None:
        """Close the connection and all its streams."""
        self._closed = True
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    def _error(self, error: grpc.aio.AioRpcError) -> DraftwireError:
        metadata = dict(error.trailing_metadata() or ())
        remedy = metadata.get("draftwire-remedy-bin", b"")
        code = metadata.get("draftwire-code")
        message = error.details() or error.code().name
        if code is None and error.code() is grpc.StatusCode.UNAVAILABLE:
            return self._unreachable(message)
        return from_wire(
            error.code().name,
            str(code) if code is not None else None,
            message,
            remedy.decode(errors="replace") if isinstance(remedy, bytes) else str(remedy),
            str(metadata.get("draftwire-session", "")) or None,
        )

    def _unreachable(self, why: str) -> LinkLost | LinkNotSecure:
        if failure := tls_failure(self.address, why):
            return failure
        speaks = "speaks TLS" if self._secure else "speaks plaintext (TLS there takes a ca here)"
        return LinkLost(
            f"the verifier at {self.address} can't be reached: {why}",
            remedy=f"check the address, and that draftwire-verifier runs there and {speaks}",
        )


class _GrpcLink:
    def __init__(
        self,
        call: Any,
        count: WireBytes,
        padding: int,
        translate: Callable[[grpc.aio.AioRpcError], DraftwireError],
    ) -> None:
        self._call = call
        self._count = count
        self._padding = padding
        self._translate = translate
        # Unlike `call.read()`, it still gives what came before the end when a frame could not be
        # sent because of it.
        self._messages = aiter(call)
        self._within_s = _FIRST_WITHIN_S
        self._ending: grpc.aio.AioRpcError | None = None
        call.add_done_callback(self._note_ending)

    async def send(self, frame: ClientFrame) -> None:
        message = codec.encode_client(frame)
        codec.pad(message, self._padding)
        size = message.ByteSize()
        if size > MAX_FRAME_BYTES:
            raise PromptTooLong(
                f"the history takes {size} bytes, a frame holds {MAX_FRAME_BYTES}",
                remedy="shorten the prompt",
            )
        try:
            await self._call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return
        except asyncio.CancelledError:
            if _being_cancelled():
                raise
            return
        if isinstance(frame, Draft):
            self._count.drafts_up += size
        else:
            self._count.other_up += size

    async def receive(self) -> ServerFrame:
        try:
            async with asyncio.timeout(self._within_s):
                message = await anext(self._messages)
        except TimeoutError:
            raise LinkLost(f"the verifier has said nothing for {self._within_s:g} s") from None
        except grpc.aio.AioRpcError as error:
            raise await self._reason(error) from error.with_traceback(None)
        except StopAsyncIteration:
            raise _ended_early() from None
        except asyncio.CancelledError:
            if _being_cancelled():
                raise
            raise LinkLost("the connection was closed") from None
        self._within_s = _NEXT_WITHIN_S
        frame = codec.decode_server(message)
        if isinstance(frame, Verdict):
            self._count.verdicts_down += message.ByteSize()
        else:
            self._count.other_down += message.ByteSize()
        return frame

    async def leave(self) -> None:
        """Cancel the stream if it has not ended, and let go of it."""
        self._call.cancel()
        with contextlib.suppress(RuntimeError):  # it is being read, and the cancel ends that
            await self._messages.aclose()  # else it and the call hold each other
        self._call = self._messages = None

    def _note_ending(self, call: Any) -> None:
        """Keep the verifier's own word on how the stream ended.

        A frame that was being sent when it did fails, and gRPC then tells of that instead: before
        the verifier's word has come, or in its place.
        """
        ending = _at_once(_ending_of(call))
        if ending.details() != _SEND_FAILED:
            self._ending = ending

    async def _reason(self, error: grpc.aio.AioRpcError) -> DraftwireError:
        for _ in range(_STATUS_POLLS):
            if self._ending is not None:
                break
            # gRPC says once that a call is done, also where it corrects itself on how.
            await asyncio.sleep(_STATUS_POLL_S)
            self._note_ending(self._call)
        ending = self._ending or error
        if ending.code() is grpc.StatusCode.OK:
            return _ended_early()
        return self._translate(ending)


async def _ending_of(call: Any) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(
        await call.code(),
        await call.initial_metadata(),
        await call.trailing_metadata(),
        details=await call.details(),
    )


def _at_once(ending: Coroutine[Any, Any, grpc.aio.AioRpcError]) -> grpc.aio.AioRpcError:
    """What a coroutine returns that has nothing to wait for."""
    try:
        ending.send(None)
    except StopIteration as done:
        value: grpc.aio.AioRpcError = done.value
        return value
    ending.close()
    raise AssertionError("it waits")


def _trace_context() -> tuple[tuple[str, str], ...]:
    """W3C trace headers of the app's span; none where it does not use OpenTelemetry."""
    if "opentelemetry.trace" not in sys.modules:
        return ()
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    headers: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(headers)
    return tuple(headers.items())


def _ended_early() -> LinkLost:
    return LinkLost("the verifier ended the stream before the generation had finished")


def _being_cancelled() -> bool:
    """Whether it is this task that is cancelled, or only the call it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
