"""A conversation in the model's chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from edge_client.options import settings
from edge_client.results import Summary
from edge_client.session import Session
from edge_client.stream import AsyncStream

if TYPE_CHECKING:
    from edge_client.client import AsyncEdgeClient

Messages: TypeAlias = Sequence[Mapping[str, str]]
"""A conversation: mappings with `role` ("system", "user", "assistant") and `content`."""


class AsyncChat:
    """A conversation in the model's chat template; `messages` is all of it so far."""

    def __init__(
        self, client: AsyncEdgeClient, system: str | None = None, messages: Messages = ()
    ) -> None:
        self.messages: list[dict[str, str]] = []
        if system is not None:
            self.messages.append({"role": "system", "content": system})
        self.messages += [dict(message) for message in messages]
        self._client = client
        self._session: Session | None = None

    async def send(self, text: str, **options: Any) -> AsyncStream:
        """The answer to `text`, a stream; options are those of `AsyncEdgeClient.generate`.

        Question and answer join `messages` when the stream has ended.
        """
        self._client._require_open()
        if self._session is None:
            asked: dict[str, Any] = {**self._client._defaults, **options}
            self._session = await self._client._begin(settings(**asked))
        question = {"role": "user", "content": text}

        def remember(summary: Summary) -> None:
            self.messages += [question, {"role": "assistant", "content": summary.text}]

        return self._client.generate(
            messages=[*self.messages, question], session=self._session, done=remember, **options
        )
