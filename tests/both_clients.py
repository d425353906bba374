"""The two clients under the same tests: a verifier on loopback, and a way to drive either."""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self, TypeAlias

from cloud_verifier.engine import Engine
from cloud_verifier.server import VerifierServer
from cloud_verifier.table_target import TableTarget
from cloud_verifier.target import Judgement, Row
from draftwire.testing.table import TableModel
from edge_client.client import AsyncEdgeClient
from edge_client.sync import EdgeClient, _Loop

Client: TypeAlias = Any
"""`EdgeClient`, or `AsyncEdgeClient` driven as if it were one: that it can be is what is tested."""


class Driven:
    """An asynchronous object used like its blocking twin: whatever must be awaited is."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.inner, name)
        return self._call(value) if callable(value) else value

    def _call(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result

        def run(*args: Any, **kwargs: Any) -> Any:
            result = _Loop.run(call(*args, **kwargs))
            asynchronous = any(hasattr(result, name) for name in ("__anext__", "send"))
            return Driven(result) if asynchronous else result

        return run

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            return self._call(self.inner.__anext__)()
        except StopAsyncIteration:
            raise StopIteration from None

    def __enter__(self) -> Self:
        self._call(self.inner.__aenter__)()
        return self

    def __exit__(self, *error: object) -> None:
        self._call(self.inner.__aexit__)(*error)


def blocking(*args: Any, **kwargs: Any) -> Client:
    return EdgeClient(*args, **kwargs)


def asynchronous(*args: Any, **kwargs: Any) -> Client:
    return Driven(AsyncEdgeClient(*args, **kwargs))


class GatedTarget(TableTarget):
    """Says when a pass begins, and waits with it while the gate is shut."""

    def __init__(self, model: TableModel) -> None:
        super().__init__(model)
        self.gate = threading.Event()
        self.gate.set()
        self.began = threading.Event()

    def verify(self, rows: Sequence[Row]) -> list[Judgement | None]:
        self.began.set()
        assert self.gate.wait(60)
        return super().verify(rows)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Shut the gate; inside, the next pass has begun once `began` is set."""
        self.gate.clear()
        self.began.clear()
        try:
            yield
        finally:
            self.gate.set()


@contextlib.contextmanager
def serving(model: TableModel) -> Iterator[VerifierServer]:
    """A verifier on a free port of loopback, on the loop that blocking clients use."""
    server = VerifierServer(Engine(GatedTarget(model)), "127.0.0.1:0", grace_s=1.0)
    _Loop.run(server.start())
    try:
        yield server
    finally:
        _Loop.run(server.stop())
