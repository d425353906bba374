"""The emulated link: exact on virtual time, close over real sockets, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import psutil
import pytest

from draftwire.errors import InvalidRequest
from draftwire.testing.clock import run_virtual
from draftwire.testing.link import PROFILES, LinkEmulator, LinkProfile, main
from draftwire.testing.relay import End
from draftwire.testing.wire import Wire

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]

# A busy machine delivers late, never early: the best of a few tries is held against this.
LATE_MS = 8.0


# ------------------------------------------------------------------ the wire, on virtual time


class Party:
    """Sends over a wire and notes when what arrives."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.data: list[bytes] = []
        self._held = False

    def waits(self) -> bool:
        return self._held

    def take(self, data: bytes) -> None:
        self.times.append(asyncio.get_running_loop().time())
        self.data.append(data)

    def hold(self, reason: object) -> None:
        assert reason is not None
        self._held = True

    def release(self, reason: object) -> None:
        assert reason is not None
        self._held = False


def test_bytes_arrive_after_half_a_round_trip() -> None:
    async def scenario() -> None:
        wire, party = Wire(LinkProfile(rtt_ms=20), seed=0), Party()
        wire.send(b"a", party.take, party)
        await asyncio.sleep(0.005)
        wire.send(b"b", party.take, party)
        await asyncio.sleep(1)
        assert party.data == [b"a", b"b"]
        assert party.times == pytest.approx([0.010, 0.015])

    run_virtual(scenario())


def test_jitter_varies_the_delay_and_keeps_the_order() -> None:
    async def scenario(seed: int) -> list[float]:
        wire, party = Wire(LinkProfile(rtt_ms=60, jitter_ms=20), seed), Party()
        for number in range(200):
            wire.send(number.to_bytes(2, "big"), party.take, party)
            await asyncio.sleep(0.004)
        await asyncio.sleep(1)
        assert [int.from_bytes(data, "big") for data in party.data] == list(range(200))
        delays = [1000 * at - 4 * number for number, at in enumerate(party.times)]
        assert 20 <= min(delays) < 23
        assert 37 < max(delays) <= 40
        return delays

    assert run_virtual(scenario(1)) == run_virtual(scenario(1)) != run_virtual(scenario(2))


def test_bandwidth_spreads_bytes_over_time_and_is_shared() -> None:
    async def scenario() -> None:
        wire = Wire(LinkProfile(rtt_ms=10, mbit_s=8), seed=0)  # 1000 bytes a ms
        one, other = Party(), Party()
        wire.send(bytes(40_000), one.take, one)
        wire.send(bytes(10_000), other.take, other)
        await asyncio.sleep(1)
        assert one.times[0] == pytest.approx(0.005 + 0.004096)
        assert one.times[-1] == pytest.approx(0.045)
        assert other.times[-1] == pytest.approx(0.055)
        assert sum(map(len, one.data)) == 40_000

    run_virtual(scenario())


def test_a_full_wire_holds_the_sender_until_half_is_gone() -> None:
    async def scenario() -> None:
        profile = LinkProfile(rtt_ms=100, mbit_s=8)
        wire, party = Wire(profile, seed=0), Party()
        assert profile.capacity_bytes == (1 << 20) + 50_000
        wire.send(bytes(profile.capacity_bytes), party.take, party)
        assert not party.waits()
        wire.send(b"x", party.take, party)
        assert party.waits()
        await asyncio.sleep(0.5)
        assert party.waits()
        await asyncio.sleep(0.2)
        assert not party.waits()

    run_virtual(scenario())


def test_a_stalled_wire_delivers_all_of_it_afterwards() -> None:
    async def scenario() -> None:
        wire, party = Wire(LinkProfile(rtt_ms=20), seed=0), Party()
        wire.send(b"before", party.take, party)
        wire.stall(2.0)
        await asyncio.sleep(1.995)
        wire.send(b"late", party.take, party)
        await asyncio.sleep(1)
        assert party.data == [b"before", b"late"]
        assert party.times == pytest.approx([2.0, 2.005])

    run_virtual(scenario())


def test_a_change_of_profile_never_reorders() -> None:
    async def scenario() -> None:
        wire, party = Wire(LinkProfile(rtt_ms=600), seed=0), Party()
        wire.send(b"slow", party.take, party)
        wire.profile = LinkProfile(rtt_ms=2)
        wire.send(b"fast", party.take, party)
        await asyncio.sleep(1)
        wire.send(b"later", party.take, party)
        await asyncio.sleep(1)
        assert party.data == [b"slow", b"fast", b"later"]
        assert party.times == pytest.approx([0.3, 0.3, 1.001])

    run_virtual(scenario())


# ------------------------------------------------------------------ over sockets


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()


@contextlib.asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    """A server on a free port of the loopback; `handler` may meet a broken connection."""
    tasks = set()

    async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await handler(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(guarded, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            if task is not None:
                task.cancel()
        await asyncio.gather(*filter(None, tasks))
        await server.wait_closed()


@contextlib.asynccontextmanager
async def connected(address: str) -> AsyncIterator[Stream]:
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def echo_ms(stream: Stream, data: bytes = b"ping") -> float:
    """How long an echo takes, milliseconds."""
    reader, writer = stream
    began = time.perf_counter()
    writer.write(data)
    assert await asyncio.wait_for(reader.readexactly(len(data)), 5) == data
    return (time.perf_counter() - began) * 1000


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """Run, and check that neither tasks nor file descriptors are left."""

    async def main() -> None:
        await scenario
        assert asyncio.all_tasks() == {asyncio.current_task()}

    before = psutil.Process().num_fds()
    asyncio.run(main())
    assert psutil.Process().num_fds() == before


def test_an_echo_takes_the_round_trip() -> None:
    async def scenario() -> None:
        async with (
            serving(echo) as target,
            LinkEmulator(target, LinkProfile(rtt_ms=20.5)) as link,
            connected(link.address) as stream,
        ):
            assert await echo_ms(stream) >= 41, "a handshake takes a round trip too"
            times = [await echo_ms(stream) for _ in range(5)]
            assert min(times) >= 20.5
            assert min(times) < 20.5 + LATE_MS
            assert (link.bytes_up, link.bytes_down) == (24, 24)

    run(scenario())


def test_without_delay_it_is_only_a_relay() -> None:
    async def scenario() -> None:
        data = os.urandom(1 << 20)
        async with (
            serving(echo) as target,
            LinkEmulator(target) as link,
            connected(link.address) as stream,
        ):
            assert min([await echo_ms(stream) for _ in range(5)]) < LATE_MS
            await echo_ms(stream, data)

    run(scenario())


def test_a_profile_changes_in_the_middle() -> None:
    async def scenario() -> None:
        async with (
            serving(echo) as target,
            LinkEmulator(target, PROFILES["lan"]) as link,
            connected(link.address) as stream,
        ):
            assert min([await echo_ms(stream) for _ in range(5)]) < 1 + LATE_MS
            link.set_profile(LinkProfile(rtt_ms=40))
            assert await echo_ms(stream) >= 40
            assert link.profile.rtt_ms == 40

    run(scenario())


def test_each_direction_has_a_profile_of_its_own() -> None:
    async def scenario() -> None:
        slow = LinkProfile(rtt_ms=40)
        async with (
            serving(echo) as target,
            LinkEmulator(target, LinkProfile(rtt_ms=2), down=slow) as link,
            connected(link.address) as stream,
        ):
            times = [await echo_ms(stream) for _ in range(5)]
            assert min(times) >= 21
            assert min(times) < 21 + LATE_MS
            assert (link.profile.rtt_ms, link.profile_down.rtt_ms) == (2, 40)
            link.set_profile(slow)
            assert await echo_ms(stream) >= 40

    run(scenario())


def test_one_direction_stalls_while_the_other_goes_on() -> None:
    async def scenario() -> None:
        arrived = asyncio.Event()

        async def watched(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(1)
            arrived.set()
            writer.write(b"y")
            await writer.drain()

        async with (
            serving(watched) as target,
            LinkEmulator(target) as link,
            connected(link.address) as (reader, writer),
        ):
            stall = asyncio.create_task(link.stall(0.2, up=False))
            await asyncio.sleep(0)
            began = time.perf_counter()
            writer.write(b"x")
            await arrived.wait()
            assert time.perf_counter() - began < 0.1
            await reader.readexactly(1)
            assert time.perf_counter() - began >= 0.19
            await stall

    run(scenario())


def test_bandwidth_limits_a_download() -> None:
    async def scenario() -> None:
        async def send(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(bytes(100_000))
            await writer.drain()

        async with (
            serving(send) as target,
            LinkEmulator(target, LinkProfile(mbit_s=4)) as link,
            connected(link.address) as (reader, _),
        ):
            began = time.perf_counter()
            assert len(await reader.read(-1)) == 100_000
            assert 0.19 < time.perf_counter() - began < 0.4

    run(scenario())


def test_a_stall_delays_and_breaks_nothing() -> None:
    async def scenario() -> None:
        async with (
            serving(echo) as target,
            LinkEmulator(target, LinkProfile(rtt_ms=2)) as link,
            connected(link.address) as stream,
        ):
            await echo_ms(stream)
            stall = asyncio.create_task(link.stall(0.2))
            await asyncio.sleep(0)
            assert await echo_ms(stream) >= 200
            await stall
            assert min([await echo_ms(stream) for _ in range(5)]) < 2 + LATE_MS

    run(scenario())


def test_a_cut_resets_both_sides_and_a_new_connection_works() -> None:
    async def scenario() -> None:
        seen: asyncio.Queue[type[BaseException] | None] = asyncio.Queue()

        async def watched(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await echo(reader, writer)
            except ConnectionError as error:
                seen.put_nowait(type(error))

        async with serving(watched) as target, LinkEmulator(target, PROFILES["lan"]) as link:
            async with connected(link.address) as stream:
                await echo_ms(stream)
                stream[1].write(b"lost")
                link.cut()
                with pytest.raises(ConnectionResetError):
                    await asyncio.wait_for(stream[0].readexactly(4), 5)
                assert await asyncio.wait_for(seen.get(), 5) is ConnectionResetError
            async with connected(link.address) as stream:
                await echo_ms(stream)

    run(scenario())


def test_after_a_cut_new_connections_can_be_refused_for_a_while() -> None:
    async def scenario() -> None:
        async with serving(echo) as target, LinkEmulator(target) as link:
            link.cut(refuse_s=0.1)
            refused_until = time.perf_counter() + 0.1
            tries = 0
            while True:
                tries += 1
                try:
                    async with connected(link.address) as stream:
                        await echo_ms(stream)
                        break
                except (ConnectionError, asyncio.IncompleteReadError):
                    await asyncio.sleep(0.01)
            assert tries > 1
            assert time.perf_counter() >= refused_until - 0.005

    run(scenario())


def test_a_half_closed_connection_still_answers() -> None:
    async def scenario() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write((await reader.read(-1))[::-1])
            await writer.drain()

        async with (
            serving(answer) as target,
            LinkEmulator(target, PROFILES["lan"]) as link,
            connected(link.address) as (reader, writer),
        ):
            writer.write(b"abc")
            writer.write_eof()
            assert await asyncio.wait_for(reader.read(-1), 5) == b"cba"

    run(scenario())


def test_a_target_that_is_not_there_resets_the_client() -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        async with (
            LinkEmulator(f"127.0.0.1:{port}") as link,
            connected(link.address) as (reader, _),
        ):
            with pytest.raises(ConnectionResetError):
                await asyncio.wait_for(reader.read(1), 5)

    run(scenario())


def test_a_target_that_does_not_read_makes_the_sender_wait() -> None:
    async def scenario() -> None:
        async def deaf(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            await asyncio.get_running_loop().create_future()

        async with (
            serving(deaf) as target,
            LinkEmulator(target, PROFILES["lan"]) as link,
            connected(link.address) as (_, writer),
        ):

            async def flood() -> None:
                for _ in range(1000):
                    writer.write(bytes(1 << 16))
                    await writer.drain()

            with pytest.raises(TimeoutError):
                await asyncio.wait_for(flood(), 0.5)
            # The kernel holds some MB per socket, the link one.
            assert link.bytes_up < 24 << 20
            writer.transport.abort()

    run(scenario())


def test_leaving_closes_connections_in_every_state() -> None:
    async def scenario() -> None:
        async with serving(echo) as target, contextlib.AsyncExitStack() as clients:
            async with LinkEmulator(target, LinkProfile(rtt_ms=50)) as link:
                relayed = await clients.enter_async_context(connected(link.address))
                await echo_ms(relayed)
                relayed[1].write(b"under way")
                half = await clients.enter_async_context(connected(link.address))
                half[1].write_eof()
                await clients.enter_async_context(connected(link.address))  # shaking hands
            with pytest.raises(ConnectionResetError):
                await asyncio.wait_for(relayed[0].read(100), 5)

    run(scenario())


# ------------------------------------------------------------------ thread and process


@contextlib.contextmanager
def echo_thread() -> Any:
    """An echo server for one connection at a time, without an event loop."""

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(ConnectionError):
                while data := connection.recv(1 << 16):
                    connection.sendall(data)

    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=serve)
    thread.start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    thread.join()
    listener.close()


def client(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=5)


def blocking_echo_ms(sock: socket.socket) -> float:
    began = time.perf_counter()
    sock.sendall(b"ping")
    assert sock.recv(4, socket.MSG_WAITALL) == b"ping"
    return (time.perf_counter() - began) * 1000


def test_a_thread_of_its_own_serves_callers_without_a_loop() -> None:
    before = psutil.Process().num_fds(), threading.active_count()
    with echo_thread() as target, LinkEmulator.in_thread(target, LinkProfile(rtt_ms=20)) as link:
        with client(link.address) as sock:
            assert blocking_echo_ms(sock) >= 40
            best = min(blocking_echo_ms(sock) for _ in range(5))
            assert 20 <= best < 20 + LATE_MS
            assert (link.bytes_up, link.bytes_down) == (24, 24)
            link.set_profile(LinkProfile())
            began = time.perf_counter()
            link.stall(0.05)
            assert time.perf_counter() - began >= 0.05
            link.cut()
            with pytest.raises(ConnectionResetError):
                sock.recv(1)
        with client(link.address) as sock:
            blocking_echo_ms(sock)
    assert (psutil.Process().num_fds(), threading.active_count()) == before


def test_a_thread_that_cannot_listen_says_so() -> None:
    before = psutil.Process().num_fds(), threading.active_count()
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(OSError, match="in use"),
        LinkEmulator.in_thread("127.0.0.1:1", listen=f"127.0.0.1:{taken.getsockname()[1]}"),
    ):
        pass
    assert (psutil.Process().num_fds(), threading.active_count()) == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_relays_until_it_is_told_to_stop(number: signal.Signals) -> None:
    async def scenario() -> None:
        async with serving(echo) as target:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-W", "error", "-m", "draftwire.testing.link"),
                *("--target", target, "--profile", "wifi", "--rtt", "20", "--jitter", "0"),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            assert process.stdout is not None
            address = (await asyncio.wait_for(process.stdout.readline(), 20)).decode().strip()
            async with connected(address) as stream:
                assert await echo_ms(stream) >= 40
                best = min([await echo_ms(stream) for _ in range(5)])
                assert 20 <= best < 20 + LATE_MS
                process.send_signal(number)
                out, errors = await asyncio.wait_for(process.communicate(), 10)
            assert (process.returncode, errors) == (0, b"")
            assert out == b"24 bytes up, 24 bytes down\n"

    asyncio.run(scenario())


def test_the_command_names_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--target", "nowhere"]) == 2
    assert main(["--target", "127.0.0.1:1", "--rtt", "-5"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert errors == [
        "error: 'nowhere' is not host:port",
        "error: a link needs 0 ≤ jitter_ms ≤ rtt_ms and mbit_s ≥ 0",
    ]


def test_impossible_links_are_refused() -> None:
    for wrong in ({"rtt_ms": -1}, {"rtt_ms": 5, "jitter_ms": 6}, {"mbit_s": -1}):
        with pytest.raises(InvalidRequest):
            LinkProfile(**wrong)
    for address in ("host", ":80", "host:http", "host:99999"):
        with pytest.raises(InvalidRequest):
            LinkEmulator(address)


def test_bytes_read_before_there_is_a_peer_are_kept_in_order() -> None:
    async def scenario() -> list[bytes]:
        sent: list[bytes] = []

        class Straight(Wire):
            def send(self, data: bytes, deliver: Callable[[bytes], object], sender: object) -> None:  # noqa: ARG002
                deliver(data)

        wire = Straight(LinkProfile(), 0)
        early, peer = End(wire, set()), End(wire, set())
        peer.write = sent.append  # type: ignore[method-assign]
        early.data_received(b"one")
        early.data_received(b"two")
        early.join(peer)
        early.data_received(b"three")
        return sent

    assert asyncio.run(scenario()) == [b"one", b"two", b"three"]
