"""A link emulator in a thread of its own, for callers that have no event loop to spare."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING

from draftwire.testing.wire import LinkProfile, precise_loop

if TYPE_CHECKING:
    from draftwire.testing.link import LinkEmulator


class ThreadedLink:
    """A `LinkEmulator` that runs in another thread. Safe to use from any."""

    def __init__(self, link: LinkEmulator, loop: asyncio.AbstractEventLoop) -> None:
        self._link = link
        self._loop = loop
        self.address = link.address

    @property
    def bytes_up(self) -> int:
        """Bytes that came from clients."""
        return self._link.bytes_up

    @property
    def bytes_down(self) -> int:
        """Bytes that came from the target."""
        return self._link.bytes_down

    def set_profile(self, profile: LinkProfile, *, down: LinkProfile | None = None) -> None:
        """Change the link for all bytes from now on."""
        self._loop.call_soon_threadsafe(lambda: self._link.set_profile(profile, down=down))

    def stall(self, seconds: float, *, up: bool = True, down: bool = True) -> None:
        """Deliver nothing, or nothing one way, for that long; returns when bytes flow again."""
        stall = self._link.stall(seconds, up=up, down=down)
        asyncio.run_coroutine_threadsafe(stall, self._loop).result()

    def cut(self, refuse_s: float = 0.0) -> None:
        """Reset all connections; reset new ones for `refuse_s` too."""
        self._loop.call_soon_threadsafe(self._link.cut, refuse_s)


@contextlib.contextmanager
def run_in_thread(link: LinkEmulator) -> Iterator[ThreadedLink]:
    """Serve `link` from another thread. Raises what starting it raises."""
    started: Future[None] = Future()
    stop = asyncio.Event()

    async def serve() -> None:
        try:
            async with link:
                started.set_result(None)
                await stop.wait()
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    loop = precise_loop()
    thread = threading.Thread(
        target=lambda: loop.run_until_complete(serve()), name="draftwire-link", daemon=True
    )
    thread.start()
    try:
        started.result()
        yield ThreadedLink(link, loop)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
