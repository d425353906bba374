"""The verifier on a socket and the device's transport, with a toy model on both sides."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import socket
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from table_client import MODEL, on_a_loop

from cloud_verifier import server as server_module
from cloud_verifier.engine import Arrival, Departure, Engine, EngineConfig
from cloud_verifier.server import SERVICE_NAME, VerifierServer
from cloud_verifier.table_target import TableTarget
from draftwire.errors import (
    DraftwireError,
    Draining,
    InvalidRequest,
    LinkLost,
    ModelChanged,
    ModelNotFound,
    PromptTooLong,
    ProtocolVersion,
    ProtocolViolation,
    ServerFull,
    SessionGone,
    Superseded,
    UnsupportedParameter,
    VocabularyMismatch,
    from_wire,
)
from draftwire.testing.link import LinkEmulator
from draftwire.types import (
    Cancel,
    ClientFrame,
    Draft,
    FinishReason,
    Grammar,
    History,
    Open,
    Opened,
    SamplingParams,
    ServingLimits,
    StopRules,
)
from draftwire.v1 import verifier_pb2 as pb
from draftwire.v1 import verifier_pb2_grpc as rpc
from edge_client import transport as transport_module
from edge_client.branch import Commit
from edge_client.drafters.table import TableDrafter
from edge_client.plan import FixedController, Plan
from edge_client.request import Request
from edge_client.retry import RetryPolicy
from edge_client.session import Generation, Session
from edge_client.transport import GrpcTransport, Link, WireBytes

PROMPT = [5, 6, 7]
CLOUD = Plan.cloud_alone(8)
PLANS = {
    "waiting": Plan.waiting(4),
    "waiting, run-on": Plan.waiting(4, credit=6),
    "pipelined": Plan(window=12, chunk=2, credit=1, pipelined=True),
    "pipelined, run-on": Plan(window=12, chunk=2, credit=6, pipelined=True),
    "cloud alone": CLOUD,
}
QUICK = RetryPolicy(first_wait_s=0.01, longest_wait_s=0.02)
NO_RETRY = RetryPolicy(first_wait_s=0.01, give_up_after_s=0.0)


class WatchedEngine(Engine):
    """Tells the event loop of every step it has made."""

    def __init__(self, **config: Any) -> None:
        limits = ServingLimits(max_context=2048, max_rows=9)
        target = TableTarget(MODEL, limits=limits, num_blocks=1024)
        super().__init__(target, EngineConfig(**config))
        self._loop = asyncio.get_running_loop()
        self._stepped = asyncio.Event()

    def step(self, arrivals: Sequence[Arrival]) -> list[Departure]:
        departures = super().step(arrivals)
        self._loop.call_soon_threadsafe(self._stepped.set)
        return departures

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._stepped.clear()
            await self._stepped.wait()

    async def until_quiet(self) -> None:
        await self.until(lambda: not self.active)
        assert self.pool.held == 0


@contextlib.asynccontextmanager
async def serving(*, grace_s: float = 0.0, **config: Any) -> AsyncIterator[VerifierServer]:
    async with VerifierServer(WatchedEngine(**config), "127.0.0.1:0", grace_s=grace_s) as server:
        yield server


@contextlib.asynccontextmanager
async def connected(address: str, **options: Any) -> AsyncIterator[GrpcTransport]:
    transport = GrpcTransport(address, **options)
    try:
        yield transport
    finally:
        await transport.close()


@contextlib.asynccontextmanager
async def raw_link(address: str, *frames: ClientFrame) -> AsyncIterator[Link]:
    """A stream without a session, to say what no session would."""
    async with connected(address) as transport, transport.connect(WireBytes()) as link:
        for frame in frames:
            await link.send(frame)
        yield link


async def new_session(
    transport: GrpcTransport, *, accuracy: float = 0.1, retry: RetryPolicy = QUICK
) -> Session:
    card = await transport.describe()
    return Session(
        transport,
        card,
        fingerprint=card.target.vocabulary_fingerprint,
        drafter=TableDrafter(MODEL.perturbed(accuracy, seed=1)),
        retry=retry,
    )


async def collect(generation: Generation) -> list[int]:
    async with contextlib.aclosing(generation.run()) as commits:
        return [token async for commit in commits for token, _ in commit]


async def drain(commits: AsyncGenerator[list[Commit]]) -> None:
    """Let a generation run to its end."""
    async for _ in commits:
        pass


async def say(
    session: Session,
    plan: Plan = CLOUD,
    count: int = 20,
    prompt: Sequence[int] = PROMPT,
    **options: Any,
) -> list[int]:
    """What a generation of that many tokens gives."""
    options.setdefault("stop", StopRules(max_tokens=count))
    return await collect(session.generate(prompt, FixedController(plan), Request(**options)))


def opening(**changes: Any) -> Open:
    values: dict[str, Any] = {
        "session_id": bytes(range(16)),
        "attempt": 1,
        "generation": 1,
        "start": len(PROMPT),
        "history": History(tokens=tuple(PROMPT)),
        "vocabulary_fingerprint": TableTarget(MODEL).card.target.vocabulary_fingerprint,
    }
    return Open(**(values | changes))


# ------------------------------------------------------------------ the text


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@on_a_loop
async def test_the_text_is_the_targets_own(plan: Plan) -> None:
    async with serving() as server, connected(server.address) as transport:
        session = await new_session(transport)
        assert await say(session, plan, 150) == MODEL.generate(PROMPT, 150)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@on_a_loop
async def test_sampled_text_depends_on_the_seed_alone(plan: Plan) -> None:
    sampling = SamplingParams(temperature=0.9, top_p=0.95, seed=7)
    async with serving() as server, connected(server.address) as transport:
        alone = await say(await new_session(transport), CLOUD, 60, sampling=sampling)
        split = await say(await new_session(transport), plan, 60, sampling=sampling)
        other = replace(sampling, seed=8)
        assert alone == split
        assert alone != await say(await new_session(transport), plan, 60, sampling=other)


@on_a_loop
async def test_a_conversation_of_several_turns_sends_its_beginning_once() -> None:
    async with serving() as server, connected(server.address) as transport:
        session = await new_session(transport)
        other_up = []
        prompt = list(range(1, 60)) * 5
        for turn in range(4):
            generation = session.generate(
                prompt, FixedController(PLANS["waiting"]), Request(stop=StopRules(max_tokens=9))
            )
            assert await collect(generation) == MODEL.generate(prompt, 9)
            other_up.append(generation.bytes.other_up)
            prompt = [*session.tokens, 40 + turn]
        assert max(other_up[1:]) < other_up[0] / 2


@on_a_loop
async def test_many_sessions_share_a_connection() -> None:
    async with serving() as server, connected(server.address) as transport:
        rng = random.Random(1)
        prompts = [[rng.randrange(1, 64) for _ in range(8)] for _ in range(24)]
        plans = [rng.choice([*PLANS.values()]) for _ in prompts]
        sessions = [await new_session(transport) for _ in prompts]
        texts = await asyncio.gather(*map(say, sessions, plans, [40] * 24, prompts))
        assert texts == [MODEL.generate(prompt, 40) for prompt in prompts]


@on_a_loop
async def test_cut_connections_are_opened_again_and_the_text_is_the_same() -> None:
    async with (
        serving() as server,
        LinkEmulator(server.address) as link,
        connected(link.address) as transport,
    ):
        session = await new_session(transport)
        generation = session.generate(
            PROMPT, FixedController(PLANS["pipelined"]), Request(stop=StopRules(max_tokens=120))
        )
        text: list[int] = []
        async for commit in generation.run():
            text += [token for token, _ in commit]
            if len(text) > 30 * generation.opens:
                link.cut()
        assert text == MODEL.generate(PROMPT, 120)
        assert generation.opens >= 3
        assert isinstance(server.engine, WatchedEngine)
        await server.engine.until_quiet()


@on_a_loop
async def test_cancelling_keeps_what_is_committed() -> None:
    async with serving() as server, connected(server.address) as transport:
        session = await new_session(transport)
        generation = session.generate(PROMPT, FixedController(PLANS["waiting"]))
        text: list[int] = []
        async for commit in generation.run():
            text += [token for token, _ in commit]
            generation.cancel()
        assert generation.finished is not None
        assert generation.finished.reason is FinishReason.CANCELLED
        assert text == MODEL.generate(PROMPT, len(text))
        assert not server.engine.active


# ------------------------------------------------------------------ errors arrive as ours


REFUSED: dict[str, tuple[dict[str, Any], type[DraftwireError]]] = {
    "vocabulary": ({"vocabulary_fingerprint": b"other"}, VocabularyMismatch),
    "model": ({"model": "other"}, ModelNotFound),
    "target": ({"expected_target": b"other"}, ModelChanged),
    "version": ({"protocol_version": 9}, ProtocolVersion),
    "grammar": ({"grammar": Grammar(kind="regex", text="✋")}, UnsupportedParameter),
    "tokens": ({"history": History(tokens=(1, 2, 64))}, InvalidRequest),
    "length": ({"history": History(tokens=(1,) * 2048), "start": 2048}, PromptTooLong),
    "history": (
        {"history": History(tokens=(), prefix_length=3, prefix_hash=bytes(16))},
        SessionGone,
    ),
}


@pytest.mark.parametrize(("change", "kind"), REFUSED.values(), ids=REFUSED)
@on_a_loop
async def test_a_refusal_arrives_with_its_class_remedy_and_session(
    change: dict[str, Any], kind: type[DraftwireError]
) -> None:
    async with serving() as server, raw_link(server.address, opening(**change)) as link:
        with pytest.raises(DraftwireError) as refused:
            await link.receive()
        error = refused.value
        assert type(error) is kind
        assert error.message
        assert error.remedy
        assert error.session_id == bytes(range(16)).hex()


@on_a_loop
async def test_words_in_any_script_survive_the_wire() -> None:
    frame = opening(required_features=("木🙂",))
    async with serving() as server, raw_link(server.address, frame) as link:
        with pytest.raises(UnsupportedParameter, match="木🙂"):
            await link.receive()


@on_a_loop
@pytest.mark.parametrize("letter", ["m", "ü", "🦙"])
async def test_a_refusal_of_something_long_keeps_its_code(letter: str) -> None:
    async with serving() as server:
        for _ in range(5):  # near its bound gRPC drops trailers at random
            async with raw_link(server.address, opening(model=letter * 20_000)) as link:
                with pytest.raises(ModelNotFound, match=letter) as caught:
                    await link.receive()
                assert "no model by name" in caught.value.remedy


@on_a_loop
async def test_a_frame_before_open_is_a_violation() -> None:
    frame = Draft(base=0, epoch=0, credit=1)
    async with serving() as server, raw_link(server.address, frame) as link:
        with pytest.raises(ProtocolViolation):
            await link.receive()


@on_a_loop
async def test_a_later_open_elsewhere_supersedes_and_is_final() -> None:
    async with serving() as server, connected(server.address) as transport:
        session = await new_session(transport)
        generation = session.generate(PROMPT, FixedController(CLOUD))
        commits = generation.run()
        await anext(commits)
        async with raw_link(server.address, opening(session_id=session.id, attempt=9)) as link:
            assert isinstance(await link.receive(), Opened)
            with pytest.raises(Superseded):
                await drain(commits)
        assert generation.opens == 1


@on_a_loop
async def test_a_full_server_says_so_at_once() -> None:
    async with serving(max_sessions=1) as server, connected(server.address) as transport:
        async with raw_link(server.address, opening()) as link:
            assert isinstance(await link.receive(), Opened)
            with pytest.raises(ServerFull) as full:
                await say(await new_session(transport))
            assert full.value.retryable
        assert isinstance(server.engine, WatchedEngine)
        await server.engine.until_quiet()
        assert await say(await new_session(transport)) == MODEL.generate(PROMPT, 20)


def raw_call(channel: grpc.aio.Channel) -> Any:
    """The method without the generated code: bytes in, bytes out."""
    return channel.stream_stream(f"/{SERVICE_NAME}/Decode")()


@pytest.mark.parametrize(
    "data", [b"\xff\xff\xff", b"", b"\x7a\x00"], ids=["garbage", "empty", "unknown kind"]
)
@on_a_loop
async def test_bytes_that_are_no_frame_end_the_stream_and_the_session(data: bytes) -> None:
    async with serving() as server, grpc.aio.insecure_channel(server.address) as channel:
        call = raw_call(channel)
        start = pb.ClientFrame(
            open=pb.Open(
                protocol_version=1,
                session_id=bytes(16),
                attempt=1,
                generation=1,
                start=1,
                history=pb.History(tokens=[1]),
                vocabulary_fingerprint=server.engine.card.target.vocabulary_fingerprint,
                verify_mode=pb.VERIFY_MODE_MATCH,
            )
        )
        await call.write(start.SerializeToString())
        assert pb.ServerFrame.FromString(await call.read()).HasField("opened")
        await call.write(data)
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await call.read()
        metadata = dict(ended.value.trailing_metadata() or ())
        error = from_wire(ended.value.code().name, str(metadata["draftwire-code"]), "")
        assert isinstance(error, ProtocolViolation)
        assert isinstance(server.engine, WatchedEngine)
        await server.engine.until_quiet()


@on_a_loop
async def test_a_prompt_larger_than_a_frame_is_refused_and_not_tried_again() -> None:
    async with serving() as server, connected(server.address) as transport:
        session = await new_session(transport)
        with pytest.raises(DraftwireError) as refused:
            await say(session, prompt=[1 << 30] * 300_000)
        assert isinstance(refused.value, PromptTooLong)


@on_a_loop
async def test_a_verifier_that_is_not_there_is_a_lost_link_in_time() -> None:
    address = unused_address()
    async with connected(address, timeout_s=0.2) as transport:
        with pytest.raises(LinkLost, match=address) as lost:
            await transport.describe()
        assert "draftwire-verifier" in lost.value.remedy
        async with transport.connect(WireBytes()) as link:
            await link.send(opening())
            with pytest.raises(LinkLost, match=address):
                await link.receive()


def unused_address() -> str:
    with contextlib.closing(socket.socket()) as sock:
        sock.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{sock.getsockname()[1]}"


@on_a_loop
async def test_a_frame_sent_on_an_ended_stream_is_lost_and_the_end_is_told() -> None:
    async with serving() as server, raw_link(server.address, opening(model="other")) as link:
        with pytest.raises(ModelNotFound):
            await link.receive()
        for _ in range(3):
            await link.send(Draft(base=3, epoch=0, credit=1))


class Leaving(rpc.VerifierServicer):
    """Ends every stream at its third frame, whatever is being sent."""

    async def Decode(self, request_iterator: Any, context: Any) -> None:  # noqa: N802
        for _ in range(3):
            await anext(request_iterator)
        code = (("draftwire-code", Draining.code),)
        await context.abort(grpc.StatusCode.UNAVAILABLE, "leaving", trailing_metadata=code)


@on_a_loop
async def test_the_end_is_told_whatever_is_being_sent_when_it_comes() -> None:
    server = grpc.aio.server()
    rpc.add_VerifierServicer_to_server(Leaving(), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()

    async def chatter(link: Link) -> None:
        while True:
            await link.send(Cancel())
            await asyncio.sleep(0)

    try:
        async with connected(address) as transport:
            for _ in range(30):
                async with transport.connect(WireBytes()) as link:
                    sending = asyncio.create_task(chatter(link))
                    with pytest.raises(Draining, match="leaving"):
                        await link.receive()
                    sending.cancel()
                    await asyncio.wait([sending])
    finally:
        await server.stop(None)


# ------------------------------------------------------------------ the server as a service


@on_a_loop
async def test_the_card_says_what_is_served() -> None:
    async with serving() as server, connected(server.address) as transport:
        assert await transport.describe() == server.engine.card


@on_a_loop
async def test_another_models_card_is_not_found() -> None:
    async with serving() as server, grpc.aio.insecure_channel(server.address) as channel:
        describe = channel.unary_unary(f"/{SERVICE_NAME}/DescribeModel")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await describe(pb.DescribeModelRequest(model="other").SerializeToString())
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        assert dict(refused.value.trailing_metadata() or ())["draftwire-code"] == "MODEL_NOT_FOUND"


@pytest.mark.parametrize("name", ["", SERVICE_NAME])
@on_a_loop
async def test_health_is_serving_until_it_stops(name: str) -> None:
    server = VerifierServer(WatchedEngine(), "127.0.0.1:0", grace_s=0.0)
    await server.start()
    async with grpc.aio.insecure_channel(server.address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(service=name)
        )
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        stopping = asyncio.create_task(server.stop())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watch.cancel()
        await stopping


@on_a_loop
async def test_reflection_lists_the_services() -> None:
    async with serving() as server, grpc.aio.insecure_channel(server.address) as channel:
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        answer = await call.read()
        await call.done_writing()
        names = {service.name for service in answer.list_services_response.service}
        assert {SERVICE_NAME, "grpc.health.v1.Health"} <= names


@on_a_loop
async def test_a_port_in_use_is_refused_by_its_address() -> None:
    async with serving() as server:
        second = VerifierServer(WatchedEngine(), server.address)
        with pytest.raises(InvalidRequest, match=server.address) as refused:
            await second.start()
        assert "--listen" in refused.value.remedy


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:notaport", "256.0.0.1:1"])
@on_a_loop
async def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(InvalidRequest):
        await VerifierServer(WatchedEngine(), address).start()


@on_a_loop
async def test_a_stopping_server_hands_its_sessions_back() -> None:
    server = VerifierServer(WatchedEngine(), "127.0.0.1:0", grace_s=0.0)
    await server.start()
    async with connected(server.address) as transport:
        session = await new_session(transport, retry=NO_RETRY)
        generation = session.generate(PROMPT, FixedController(PLANS["waiting"]))
        commits = generation.run()
        await anext(commits)
        stopping = asyncio.create_task(server.stop())
        with pytest.raises(Draining) as handed_back:
            await drain(commits)
        assert handed_back.value.retryable
        assert handed_back.value.remedy
        text = session.tokens[len(PROMPT) :]
        assert text == MODEL.generate(PROMPT, len(text))
        await stopping


@on_a_loop
async def test_a_stopping_server_lets_what_is_in_flight_finish() -> None:
    server = VerifierServer(WatchedEngine(), "127.0.0.1:0", grace_s=30.0)
    await server.start()
    async with connected(server.address) as transport:
        session = await new_session(transport)
        generation = session.generate(
            PROMPT, FixedController(PLANS["waiting"]), Request(stop=StopRules(max_tokens=60))
        )
        stopping: asyncio.Task[None] | None = None
        text: list[int] = []
        async for commit in generation.run():
            text += [token for token, _ in commit]
            stopping = stopping or asyncio.create_task(server.stop())
        assert text == MODEL.generate(PROMPT, 60)
        assert stopping is not None
        await stopping


@on_a_loop
async def test_a_session_goes_on_at_a_server_that_took_the_stopped_ones_place() -> None:
    first = VerifierServer(WatchedEngine(), "127.0.0.1:0", grace_s=0.0)
    await first.start()
    async with connected(first.address) as transport:
        session = await new_session(transport)
        generation = session.generate(
            PROMPT, FixedController(PLANS["waiting"]), Request(stop=StopRules(max_tokens=100))
        )
        second: VerifierServer | None = None
        text: list[int] = []
        async for commit in generation.run():
            text += [token for token, _ in commit]
            if second is None:
                await first.stop()
                second = VerifierServer(WatchedEngine(), first.address, grace_s=0.0)
                await second.start()
        assert text == MODEL.generate(PROMPT, 100)
        assert second is not None
    await second.stop()


def test_devices_ping_no_more_often_than_the_server_permits() -> None:
    ours, theirs = dict(transport_module._OPTIONS), dict(server_module._OPTIONS)
    least = theirs["grpc.http2.min_ping_interval_without_data_ms"]
    assert ours["grpc.keepalive_time_ms"] > least
    assert theirs["grpc.keepalive_permit_without_calls"] == 1


# ------------------------------------------------------------------ nothing stays behind


@pytest.mark.parametrize("how", ["transport", "stream", "connection"])
@on_a_loop
async def test_a_client_that_disappears_leaves_no_session_in_flight(how: str) -> None:
    async with serving() as server, LinkEmulator(server.address) as link:
        engine = server.engine
        assert isinstance(engine, WatchedEngine)
        transport = GrpcTransport(link.address)
        async with transport.connect(WireBytes()) as stream:
            await stream.send(opening())
            assert isinstance(await stream.receive(), Opened)
            assert len(engine.active) == 1
            if how == "transport":
                await transport.close()
            elif how == "connection":
                link.cut(refuse_s=60)
            if how != "stream":
                await engine.until_quiet()
        await engine.until_quiet()
        await transport.close()


@on_a_loop
async def test_closing_the_transport_ends_a_generation_in_flight_with_an_error() -> None:
    async with serving() as server:
        transport = GrpcTransport(server.address)
        session = await new_session(transport)
        generation = session.generate(PROMPT, FixedController(PLANS["waiting"]))
        commits = generation.run()
        await anext(commits)
        await transport.close()
        with pytest.raises(DraftwireError):
            await drain(commits)
        assert isinstance(server.engine, WatchedEngine)
        await server.engine.until_quiet()
        with pytest.raises(InvalidRequest):
            await transport.describe()


@on_a_loop
async def test_leaving_a_generation_early_ends_it_at_the_verifier() -> None:
    async with serving() as server, connected(server.address) as transport:
        session = await new_session(transport)
        generation = session.generate(PROMPT, FixedController(PLANS["pipelined"]))
        async with contextlib.aclosing(generation.run()) as commits:
            await anext(commits)
        assert generation.finished is not None
        assert generation.finished.reason is FinishReason.CANCELLED
        assert not server.engine.active


def descriptors() -> int:
    return len(os.listdir("/dev/fd")) if Path("/dev/fd").exists() else 0  # noqa: PTH208


@on_a_loop
async def test_fifty_connections_and_generations_leave_neither_threads_nor_descriptors() -> None:
    async with serving() as server:

        async def cycle(number: int) -> None:
            async with connected(server.address) as transport:
                session = await new_session(transport)
                if number % 3 == 0:
                    stream = transport.connect(WireBytes())
                    async with stream as link:
                        await link.send(opening(session_id=secrets.token_bytes(16)))
                        await link.receive()
                else:
                    assert await say(session, PLANS["waiting"], 9) == MODEL.generate(PROMPT, 9)

        for number in range(5):
            await cycle(number)
        threads, files = threading.active_count(), descriptors()
        for number in range(50):
            await cycle(number)
        assert isinstance(server.engine, WatchedEngine)
        await server.engine.until_quiet()
        assert threading.active_count() <= threads
        assert descriptors() <= files + 2  # connections that the other end is just closing


def test_ten_servers_leave_neither_threads_nor_descriptors() -> None:
    async def serve() -> None:
        async with serving() as server, connected(server.address) as transport:
            await say(await new_session(transport), CLOUD, 3)

    for _ in range(2):
        asyncio.run(serve())
    threads, files = threading.active_count(), descriptors()
    for _ in range(10):
        asyncio.run(serve())
    assert threading.active_count() <= threads
    assert descriptors() <= files + 2
