"""The SDK for code without an event loop: the same names, blocking.

One background thread runs the loop of all clients of the process.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from draftwire.credentials import Credentials
from draftwire.errors import DraftwireError, InvalidRequest
from draftwire.types import ModelCard
from edge_client.chat import AsyncChat, Messages
from edge_client.choice import Objective, Watts
from edge_client.client import AsyncEdgeClient
from edge_client.drafter import Drafter, Tokenizer
from edge_client.results import Delta, Summary
from edge_client.retry import RetryPolicy
from edge_client.session import Session
from edge_client.stream import AsyncStream
from edge_client.tentative import Shown
from edge_client.transport import Transport

if TYPE_CHECKING:
    from edge_client.translation_sync import Translator

T = TypeVar("T")

_THREAD = "draftwire-loop"


class _Loop:
    """The background loop, started when it is first needed.

    An interrupt (Ctrl-C) may come at any line of the main thread; the loop is made on its own. A
    forked process has no threads but the one that forked, so it starts a loop of its own.
    """

    _lock = threading.Lock()
    _made: Future[asyncio.AbstractEventLoop] | None = None

    @classmethod
    def run(cls, coro: Coroutine[Any, Any, T]) -> T:
        """Run `coro` there and wait. Interrupted, it is cancelled, and has ended before we raise.

        For whoever is interrupted will want to close what `coro` was using. Raises
        `InvalidRequest` on the loop's own thread, which would wait for itself.
        """
        if threading.current_thread().name == _THREAD:
            coro.close()
            raise InvalidRequest(
                "a callback may not use a blocking client: its thread carries all streams",
                remedy="hand the work to another thread",
            )
        loop: asyncio.AbstractEventLoop | None = None
        task: asyncio.Task[T] | None = None
        ended: Future[T] = Future()

        def start() -> None:
            nonlocal task
            task = asyncio.get_running_loop().create_task(coro)
            task.add_done_callback(lambda task: _copy(task, ended))

        def stop() -> None:
            if task is None:
                coro.close()
                ended.set_exception(asyncio.CancelledError())
            else:
                task.cancel()

        try:
            loop = cls._get()
            loop.call_soon_threadsafe(start)
            return ended.result()
        except BaseException:
            if loop is None:
                coro.close()
            elif not ended.done():
                loop.call_soon_threadsafe(stop)
                wait([ended])
            raise

    @classmethod
    def _get(cls) -> asyncio.AbstractEventLoop:
        with cls._lock:
            if cls._made is None:
                made: Future[asyncio.AbstractEventLoop] = Future()
                threading.Thread(target=_run_loop, args=(made,), name=_THREAD, daemon=True).start()
                cls._made = made
        return cls._made.result()

    @classmethod
    def _forget(cls) -> None:
        cls._lock, cls._made = threading.Lock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_Loop._forget)


def _run_loop(made: Future[asyncio.AbstractEventLoop]) -> None:
    loop = asyncio.new_event_loop()
    made.set_result(loop)
    loop.run_forever()


def _copy(task: asyncio.Task[T], future: Future[T]) -> None:
    if task.cancelled():
        future.set_exception(asyncio.CancelledError())
    elif (error := task.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(task.result())


class Stream:
    """A generation as it comes: iterate over its deltas; then `summary` tells how it went.

    A context manager too: leaving it ends the generation if it has not ended, and so does dropping
    it. While one thread reads, another may `cancel()`, not `close()`.
    """

    def __init__(self, inner: AsyncStream) -> None:
        self._inner = inner

    def __iter__(self) -> Iterator[Delta]:
        return self

    def __next__(self) -> Delta:
        async def step() -> Delta | None:
            return await anext(self._inner, None)

        delta = _Loop.run(step())
        if delta is None:
            raise StopIteration
        return delta

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the generation if it has not ended."""
        _Loop.run(self._inner.close())

    def cancel(self) -> None:
        """End the generation; the iterator ends with what is committed by then."""

        async def cancel() -> None:
            self._inner.cancel()

        _Loop.run(cancel())

    def read(self) -> str:
        """The whole text, when it is there."""
        return _Loop.run(self._inner.read())

    @property
    def shown(self) -> Shown:
        """What the deltas so far add up to, after an error too."""
        return self._inner.shown

    @property
    def lost(self) -> DraftwireError | None:
        """What the connection broke by, while it is made again and the text stands still."""
        return self._inner.lost

    @property
    def summary(self) -> Summary:
        """How it went. Raises `InvalidRequest` before the end."""
        return self._inner.summary


class Chat:
    """A conversation in the model's chat template; `messages` is all of it so far."""

    def __init__(self, inner: AsyncChat) -> None:
        self._inner = inner

    @property
    def messages(self) -> list[dict[str, str]]:
        """System message, questions and answers."""
        return self._inner.messages

    def send(self, text: str, **options: Any) -> Stream:
        """The answer to `text`, a stream; options are those of `EdgeClient.generate`."""
        return Stream(_Loop.run(self._inner.send(text, **options)))


class EdgeClient:
    """`AsyncEdgeClient` for code that blocks: same arguments, same errors."""

    def __init__(
        self,
        verifier: str | Transport,
        tokenizer: Tokenizer,
        drafters: Sequence[Drafter] = (),
        *,
        credentials: Credentials | None = None,
        retry: RetryPolicy | None = None,
        objective: Objective | str = Objective.LATENCY,
        watts: Watts | None = None,
        trace: str | Path | None = None,
    ) -> None:
        self._inner = AsyncEdgeClient(
            verifier,
            tokenizer,
            drafters,
            credentials=credentials,
            retry=retry,
            objective=objective,
            watts=watts,
            trace=trace,
        )

    @classmethod
    def from_config(cls, path: str | Path) -> Self:
        """A client as a TOML file describes it: see `AsyncEdgeClient.from_config`."""
        client = cls.__new__(cls)
        client._inner = AsyncEdgeClient.from_config(path)
        return client

    @classmethod
    def from_model(cls, verifier: str | Transport, model: str | Path, **options: Any) -> Self:
        """Draft with a model file; options are those of `AsyncEdgeClient.from_model`."""
        client = cls.__new__(cls)
        client._inner = AsyncEdgeClient.from_model(verifier, model, **options)
        return client

    @property
    def objective(self) -> Objective:
        """What tokens should take little of: see `AsyncEdgeClient.objective`."""
        return self._inner.objective

    @objective.setter
    def objective(self, objective: Objective | str) -> None:
        self._inner.objective = objective

    def card(self, *, again: bool = False) -> ModelCard:
        """What the verifier serves; asked once, or `again`.

        Raises `LinkLost` if it can't be reached.
        """
        return _Loop.run(self._inner.card(again=again))

    def generate(self, prompt: str | Sequence[int] | None = None, **options: Any) -> Stream:
        """Generate after a prompt; options are those of `AsyncEdgeClient.generate`."""

        async def start() -> AsyncStream:
            return self._inner.generate(prompt, **options)

        return Stream(_Loop.run(start()))

    def samples(
        self, n: int, prompt: str | Sequence[int] | None = None, **options: Any
    ) -> list[Stream]:
        """Different outputs for one prompt; options are those of `AsyncEdgeClient.samples`."""

        async def start() -> list[AsyncStream]:
            return self._inner.samples(n, prompt, **options)

        return [Stream(inner) for inner in _Loop.run(start())]

    def session(self) -> Session:
        """A new conversation, for several generations that share their beginning."""
        return _Loop.run(self._inner.session())

    def chat(self, system: str | None = None, *, messages: Messages = ()) -> Chat:
        """A conversation that goes on from `messages`: each turn sends only what is new."""
        return Chat(self._inner.chat(system, messages=messages))

    def translate(self, to: str, **options: Any) -> Translator:
        """A translator of captions; options are those of `AsyncTranslator`."""
        from edge_client.translation_sync import Translator

        return Translator(self._inner, to, **options)

    def close(self) -> None:
        """Close the connection and the drafters."""
        _Loop.run(self._inner.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
