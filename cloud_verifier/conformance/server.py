"""The scenarios as a gRPC server. Frames are bytes here: some have fields that no one knows yet."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import grpc.aio

from cloud_verifier.conformance.case import Case
from cloud_verifier.conformance.task import new_engine, ticks
from cloud_verifier.refusal import abort
from draftwire import codec
from draftwire.errors import DraftwireError, InvalidRequest, LinkLost
from draftwire.types import MAX_FRAME_BYTES, ClientFrame, Open, ServerFrame

SERVICE = "draftwire.v1.Verifier"

_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", MAX_FRAME_BYTES),
    ("grpc.so_reuseport", 0),
    # As the real one: devices may ping.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
]

# Fields 1000 (a number) and 1001 (bytes), which no message has.
_UNKNOWN = bytes.fromhex("c03e2aca3e03616263")


class Checker:
    """Gives each stream to the scenario that it belongs to.

    That is the one that its session began in, else the `current` one, else, where clients come by
    themselves, the one whose prompt it has.
    """

    def __init__(self, cases: Sequence[Case]) -> None:
        self.cases = list(cases)
        self.current: Case | None = None
        self._sessions: dict[bytes, Case] = {}

    def case_of(self, first: ClientFrame) -> Case:
        """The scenario of a stream that begins with this frame. Raises `InvalidRequest`."""
        if not isinstance(first, Open):
            if self.current is None:
                raise InvalidRequest("a stream begins with open", remedy="send it first")
            return self.current
        case = self._sessions.get(first.session_id) or self.current or self._by_prompt(first)
        self._sessions[first.session_id] = case
        return case

    def _by_prompt(self, opening: Open) -> Case:
        for index, case in enumerate(self.cases):
            prompt = case.task.prompt
            if tuple(opening.history.tokens[: len(prompt)]) == prompt:
                if case.streams:  # the client does it once more
                    case = Case(case.scenario, patience_s=case.patience_s)
                    self.cases[index] = case
                return case
        raise InvalidRequest(
            "no scenario has this prompt", remedy="take one of draftwire conformance --tasks"
        )


@contextlib.asynccontextmanager
async def serving(checker: Checker, listen: str) -> AsyncIterator[str]:
    """Serve at `listen`, `HOST:PORT`; gives the address. Raises `InvalidRequest` if it is taken."""
    server = grpc.aio.server(options=_OPTIONS)
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Decode": grpc.stream_stream_rpc_method_handler(_Servicer(checker).decode),
        "DescribeModel": grpc.unary_unary_rpc_method_handler(_describe),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    try:
        port = server.add_insecure_port(listen)
    except RuntimeError as error:
        raise InvalidRequest(
            f"can't listen on {listen}", remedy="it may be in use; give another --listen HOST:PORT"
        ) from error
    await server.start()
    try:
        yield f"{listen.rpartition(':')[0]}:{port}"
    finally:
        await server.stop(None)


class _Servicer:
    def __init__(self, checker: Checker) -> None:
        self._checker = checker

    async def decode(self, messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        frames = _unpacked(messages)
        try:
            first = await anext(frames, None)
            if first is None:
                return
            case = self._checker.case_of(first)
            unknown = case.scenario.unknown_fields
            async with contextlib.aclosing(case.decode(_chained(first, frames))) as answers:
                async for answer in answers:
                    yield _packed(answer, unknown_fields=unknown)
        except LinkLost:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the connection broke")
        except DraftwireError as error:
            await abort(context, error)


async def _describe(request: bytes, context: Any) -> bytes:  # noqa: ARG001
    return codec.encode_card(new_engine(ticks()).card).SerializeToString()


async def _unpacked(messages: AsyncIterator[bytes]) -> AsyncIterator[ClientFrame]:
    async for message in messages:
        yield codec.unpack_client(message)


async def _chained(
    first: ClientFrame, frames: AsyncIterator[ClientFrame]
) -> AsyncIterator[ClientFrame]:
    yield first
    async for frame in frames:
        yield frame


def _packed(frame: ServerFrame, *, unknown_fields: bool) -> bytes:
    if not unknown_fields:
        return codec.pack_server(frame)
    message = codec.encode_server(frame)
    for part in (message, getattr(message, message.WhichOneof("frame") or "")):
        part.MergeFromString(_UNKNOWN)
    return message.SerializeToString()
