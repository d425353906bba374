"""The emulated link as a process of its own, changed from outside.

It reads commands as JSON lines and answers each with one: `{"profile": NAME}` from now on,
`{"stall": SECONDS}` from now on, `{"bytes": true}` for what it has carried (up, down).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Collection
from typing import Any

from draftwire.testing.link import PROFILES, LinkEmulator
from draftwire.testing.wire import precise_loop


class Relay:
    """The near end: where to connect, and what to make of the link."""

    def __init__(self, process: asyncio.subprocess.Process, address: str) -> None:
        self.address = address
        self.pid = process.pid
        self._process = process

    async def be(self, profile: str, stall_s: float = 0.0) -> None:
        """Be like this from now on; deliver nothing for so long first."""
        await self._ask({"profile": profile})
        if stall_s:
            await self._ask({"stall": stall_s})

    async def carried(self) -> tuple[int, int]:
        """Bytes carried so far, from devices and to them."""
        up, down = await self._ask({"bytes": True})
        return int(up), int(down)

    async def _ask(self, command: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        return json.loads(await self._process.stdout.readline())


@contextlib.asynccontextmanager
async def relaying(target: str, cores: Collection[int] = ()) -> AsyncIterator[Relay]:
    """A relay to `target`, on these cores if any are named."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench._relay", target),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        if cores:
            os.sched_setaffinity(process.pid, cores)
        assert process.stdout is not None
        yield Relay(process, (await process.stdout.readline()).decode().strip())
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _serve(target: str) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    stalls: set[asyncio.Task[None]] = set()
    async with LinkEmulator(target) as link:

        def obey() -> None:
            line = sys.stdin.readline()
            if not line:  # whoever started it has gone
                stop.set()
                return
            command, answer = json.loads(line), [link.bytes_up, link.bytes_down]
            if "profile" in command:
                link.set_profile(PROFILES[command["profile"]])
            if "stall" in command:
                stalls.add(asyncio.create_task(link.stall(command["stall"])))
            print(json.dumps(answer), flush=True)

        loop.add_reader(sys.stdin.fileno(), obey)
        print(link.address, flush=True)
        await stop.wait()
        loop.remove_reader(sys.stdin.fileno())
        for stall in stalls:
            stall.cancel()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=precise_loop) as runner:
        runner.run(_serve(sys.argv[1]))
