"""The generations of one request, side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from draftwire.errors import Draining
from draftwire.types import FinishReason
from edge_client.client import AsyncEdgeClient
from edge_client.endpoint.requests import Asked
from edge_client.results import Delta, Summary
from edge_client.stream import AsyncStream

Take: TypeAlias = Callable[[int, Delta], Awaitable[None]]
"""Is given the deltas of each output."""


def streams_of(client: AsyncEdgeClient, asked: Asked) -> list[AsyncStream]:
    """A stream for each output, those of a prompt next to each other. Raises `InvalidRequest`."""
    return [
        stream
        for prompt in asked.prompts
        for stream in client.samples(asked.n, **prompt, **asked.options)
    ]


async def run(streams: Sequence[AsyncStream], take: Take) -> list[Summary]:
    """Read all streams to their ends; the first error of one ends the others and is raised.

    Cancelled, it has ended them all before it raises: the verifier's sessions are idle again.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(_read(index, stream, take))
                for index, stream in enumerate(streams)
            ]
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


async def _read(index: int, stream: AsyncStream, take: Take) -> Summary:
    async with stream:
        async for delta in stream:
            await take(index, delta)
    if stream.summary.finish_reason is FinishReason.CANCELLED:
        raise Draining("the endpoint is shutting down", remedy="try again later")
    return stream.summary
