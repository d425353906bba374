"""Live translation for code without an event loop: the same names, blocking."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from edge_client.client import AsyncEdgeClient
from edge_client.sync import _Loop
from edge_client.translation import AsyncTranslator
from edge_client.translation_results import TranslationReport


class Translator:
    """`AsyncTranslator` for code that blocks; made by `EdgeClient.translate`.

    `update` and `commit` return at once. `shown` is called from another thread, which must not be
    kept waiting: it carries all streams of the process.
    """

    def __init__(self, client: AsyncEdgeClient, to: str, **options: Any) -> None:
        self._inner = AsyncTranslator(client, to, **options)

    def update(self, caption: str) -> None:
        """The caption of the line being spoken, all of it, in place of the one before."""

        async def update() -> None:
            self._inner.update(caption)

        _Loop.run(update())

    def commit(self) -> None:
        """The line is final: the next update begins another."""

        async def commit() -> None:
            self._inner.commit()

        _Loop.run(commit())

    def settled(self) -> None:
        """Wait until all captions given are translated. Raises what made that fail."""
        _Loop.run(self._inner.settled())

    @property
    def report(self) -> TranslationReport:
        """How it went so far."""
        return self._inner.report

    def close(self) -> None:
        """Give up what is under way."""
        _Loop.run(self._inner.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _Loop.run(self._inner.__aexit__(kind, error, traceback))
