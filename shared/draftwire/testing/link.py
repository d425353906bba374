"""An emulated network link: a TCP relay with delay, jitter, bandwidth, stalls and cuts.

Runs in userspace and needs no privileges: in the event loop of a test (`async with
LinkEmulator(...)`), in a thread of its own (`LinkEmulator.in_thread`), or as a process, which
keeps its work off the cores that are measured::

    python -m draftwire.testing.link --target 127.0.0.1:7433 --profile lte
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import TracebackType
from typing import Self

from draftwire.errors import InvalidRequest
from draftwire.reason import reason
from draftwire.testing.relay import End
from draftwire.testing.threaded_link import ThreadedLink, run_in_thread
from draftwire.testing.wire import PROFILES, LinkProfile, Wire, precise_loop

__all__ = ["PROFILES", "LinkEmulator", "LinkProfile", "ThreadedLink", "main"]


class LinkEmulator:
    """Relays TCP connections to `target` over a link of the given profile.

    Each direction has half of its profile's round trip; `down` is that of the bytes to clients,
    where it differs. A new connection takes one round trip before its first byte, as TCP's
    handshake does. Bytes are delayed, never lost or reordered. All connections share the
    bandwidth. Jitter is seeded. Used as an asynchronous context manager; leaving it closes
    everything.
    """

    def __init__(
        self,
        target: str,
        profile: LinkProfile | None = None,
        *,
        down: LinkProfile | None = None,
        listen: str = "127.0.0.1:0",
        seed: int = 0,
    ) -> None:
        self._target = _host_and_port(target)
        self._listen = _host_and_port(listen)
        self._profile = profile or LinkProfile()
        self._profile_down = down or self._profile
        self._seed = seed
        self._ends: set[End] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._refuse_until = 0.0

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._up = Wire(self._profile, self._seed)
        self._down = Wire(self._profile_down, self._seed + 1)
        self._server = await self._loop.create_server(
            lambda: End(self._up, self._ends, self._accepted), *self._listen
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.close()
        # Aborted sockets and cancelled tasks need a few turns of the loop to end, and a
        # connection that the loop is just accepting needs one to show.
        quiet_turns = 0
        while quiet_turns < 3:
            quiet_turns = 0 if self._ends or self._connecting else quiet_turns + 1
            self.cut()
            await asyncio.sleep(0)
        await self._server.wait_closed()

    @property
    def address(self) -> str:
        """Where to connect, host:port."""
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def profile(self) -> LinkProfile:
        """What the link is like now, for bytes from clients."""
        return self._profile

    @property
    def profile_down(self) -> LinkProfile:
        """What it is like for bytes to them."""
        return self._profile_down

    @property
    def bytes_up(self) -> int:
        """Bytes that came from clients."""
        return self._up.carried_bytes

    @property
    def bytes_down(self) -> int:
        """Bytes that came from the target."""
        return self._down.carried_bytes

    @property
    def open_sockets(self) -> int:
        """Of clients and to the target."""
        return len(self._ends)

    def set_profile(self, profile: LinkProfile, *, down: LinkProfile | None = None) -> None:
        """Change the link for all bytes from now on; those under way keep their time."""
        self._profile = self._up.profile = profile
        self._profile_down = self._down.profile = down or profile

    async def stall(self, seconds: float, *, up: bool = True, down: bool = True) -> None:
        """Deliver nothing for that long; returns when bytes flow again. Connections stay.

        With `up` or `down` false the bytes from clients, or to them, go on.
        """
        until = self._loop.time() + seconds
        for wire, stalls in ((self._up, up), (self._down, down)):
            if stalls:
                wire.stall(until)
        await asyncio.sleep(seconds)

    def cut(self, refuse_s: float = 0.0) -> None:
        """Reset all connections, losing what is under way; reset new ones for `refuse_s` too."""
        self._refuse_until = self._loop.time() + refuse_s
        for task in self._connecting:
            task.cancel()
        for end in tuple(self._ends):
            end.abort()
        self._up.clear()
        self._down.clear()

    def _accepted(self, client: End) -> None:
        task = self._loop.create_task(self._connect(client))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, client: End) -> None:
        try:
            now = self._loop.time()
            if now < self._refuse_until:
                return
            held = max(0.0, self._up.held_until - now, self._down.held_until - now)
            round_trip_ms = (self._profile.rtt_ms + self._profile_down.rtt_ms) / 2
            await asyncio.sleep(held + round_trip_ms / 1000)
            _, server = await self._loop.create_connection(
                lambda: End(self._down, self._ends), *self._target
            )
            client.join(server)
        except OSError:
            pass  # the target is not there: the client sees a reset
        finally:
            if client.peer is None:
                client.abort()

    @classmethod
    def in_thread(
        cls,
        target: str,
        profile: LinkProfile | None = None,
        *,
        down: LinkProfile | None = None,
        listen: str = "127.0.0.1:0",
        seed: int = 0,
    ) -> AbstractContextManager[ThreadedLink]:
        """The same in an event loop and a thread of its own, for callers without a loop."""
        return run_in_thread(cls(target, profile, down=down, listen=listen, seed=seed))


def _host_and_port(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdigit() and int(port) < 65536):
        raise InvalidRequest(f"{address!r} is not host:port")
    return host.strip("[]"), int(port)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: relay until SIGTERM or Ctrl-C, then say how much went each way."""
    options = _parser().parse_args(arguments)
    profile = PROFILES[options.profile] if options.profile else LinkProfile()
    given = {"rtt_ms": options.rtt, "jitter_ms": options.jitter, "mbit_s": options.mbit}
    changes = {name: value for name, value in given.items() if value is not None}
    try:
        profile = replace(profile, **changes)
        emulator = LinkEmulator(options.target, profile, listen=options.listen, seed=options.seed)
        with asyncio.Runner(loop_factory=precise_loop) as runner:
            runner.run(_serve(emulator))
    except (InvalidRequest, OSError) as error:
        sys.stderr.write(f"error: {reason(error)}\n")
        return 2
    return 0


async def _serve(emulator: LinkEmulator) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with emulator as link:
        sys.stdout.write(f"{link.address}\n")
        sys.stdout.flush()
        await stop.wait()
        sys.stdout.write(f"{link.bytes_up} bytes up, {link.bytes_down} bytes down\n")


def _parser() -> argparse.ArgumentParser:
    names = "\n".join(
        f"  {name:<10} {p.rtt_ms:>4g} ms ± {p.jitter_ms:g}, "
        + (f"{p.mbit_s:g} Mbit/s" if p.mbit_s else "unlimited")
        for name, p in PROFILES.items()
    )
    parser = argparse.ArgumentParser(
        prog="python -m draftwire.testing.link",
        description="Emulate a network link: relay TCP connections to a target with delay, jitter\n"
        "and bandwidth. Prints the address to connect to, then relays until Ctrl-C.",
        epilog=f"profiles (round trip, bandwidth each way):\n{names}\n\n"
        "Options change single values of a profile. A new connection takes one round trip.\n"
        "example: python -m draftwire.testing.link --target 127.0.0.1:7433 --profile lte --rtt 90",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--target", required=True, metavar="HOST:PORT", help="where to relay to")
    parser.add_argument(
        "--listen",
        default="127.0.0.1:0",
        metavar="HOST:PORT",
        help="where to listen (default: %(default)s; port 0 takes a free one)",
    )
    parser.add_argument("--profile", choices=PROFILES, help="start from a named link")
    parser.add_argument("--rtt", type=float, metavar="MS", help="round trip, ms")
    parser.add_argument("--jitter", type=float, metavar="MS", help="± variation of the round trip")
    parser.add_argument("--mbit", type=float, metavar="N", help="Mbit/s each way, 0 for unlimited")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the jitter")
    return parser


if __name__ == "__main__":
    sys.exit(main())
