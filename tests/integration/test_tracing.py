"""Spans of a verifier's streams, and how an app's own span becomes their parent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from table_client import MODEL, Words, on_a_loop, table_client

pytest.importorskip("opentelemetry.sdk", reason="needs the otel extra")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from cloud_verifier.engine import Engine
from cloud_verifier.server import VerifierServer
from cloud_verifier.table_target import TableTarget
from cloud_verifier.tracing import exporting
from draftwire.errors import PromptTooLong
from draftwire.types import ServingLimits
from edge_client import AsyncEdgeClient, EdgeClient


class Traced:
    """A verifier, a client of it and the spans that ended."""

    def __init__(self, address: str, client: AsyncEdgeClient, provider: TracerProvider) -> None:
        self.address = address
        self.client = client
        self.app = provider.get_tracer("app")
        self.exporter = InMemorySpanExporter()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    async def spans(self) -> list[ReadableSpan]:
        """Those of the verifier. The first ends a little after its client's stream has."""
        async with asyncio.timeout(30):
            while not (found := self._spans()):  # noqa: ASYNC110 (they have no event)
                await asyncio.sleep(0.01)
        return found

    def _spans(self) -> list[ReadableSpan]:
        return [s for s in self.exporter.get_finished_spans() if s.name == "draftwire.generate"]


@contextlib.asynccontextmanager
async def traced() -> AsyncIterator[Traced]:
    provider = TracerProvider(shutdown_on_exit=False)
    target = TableTarget(MODEL, limits=ServingLimits(max_context=400))
    tracer = provider.get_tracer("verifier")
    server = VerifierServer(Engine(target), "127.0.0.1:0", grace_s=0.0, tracer=tracer)
    async with server, table_client(server.address) as client:
        yield Traced(server.address, client, provider)
    provider.shutdown()


@on_a_loop
async def test_a_generation_has_a_span_with_its_figures() -> None:
    async with traced() as world:
        stream = world.client.generate("5 6 7", max_tokens=40, num_draft_tokens=4)
        await stream.read()
        [span] = await world.spans()
        usage = stream.summary.usage
        session = (span.attributes or {})["draftwire.session"]
        assert span.attributes == {
            "draftwire.session": session,
            "draftwire.generation": 1,
            "draftwire.model": "table",
            "draftwire.prompt_tokens": 3,
            "draftwire.cached_tokens": 0,
            "draftwire.completion_tokens": 40,
            "draftwire.accepted_tokens": usage.accepted,
            "draftwire.passes": usage.passes,
            "draftwire.finish_reason": "length",
        }
        assert len(bytes.fromhex(str(session))) == 16
        assert span.kind is SpanKind.SERVER
        assert span.parent is None
        assert [event.name for event in span.events] == ["first tokens"]


@pytest.mark.parametrize("blocking", [False, True])
@on_a_loop
async def test_the_apps_span_is_the_parent(blocking: bool) -> None:
    def generate() -> None:
        with EdgeClient(world.address, Words()) as client:
            client.generate("5 6 7", max_tokens=10).read()

    async with traced() as world:
        with world.app.start_as_current_span("translate") as parent:
            if blocking:
                await asyncio.to_thread(generate)
            else:
                await world.client.generate("5 6 7", max_tokens=10).read()
        [span] = await world.spans()
        assert span.parent is not None
        assert span.parent.is_remote
        assert span.parent.span_id == parent.get_span_context().span_id
        assert span.context is not None
        assert span.context.trace_id == parent.get_span_context().trace_id


@on_a_loop
async def test_an_error_marks_the_span() -> None:
    async with traced() as world:
        with pytest.raises(PromptTooLong):
            await world.client.generate([5] * 400).read()
        [span] = await world.spans()
        assert span.status.status_code is StatusCode.ERROR
        assert (span.attributes or {})["draftwire.code"] == "PROMPT_TOO_LONG"


@on_a_loop
async def test_a_generation_left_early_ends_its_span() -> None:
    async with traced() as world:
        stream = world.client.generate("5 6 7", max_tokens=300, num_draft_tokens=4)
        async with stream:
            await anext(stream)
        [span] = await world.spans()
        assert (span.attributes or {})["draftwire.finish_reason"] == "cancelled"


def test_a_collector_that_is_not_there_holds_up_nobody(caplog: pytest.LogCaptureFixture) -> None:
    with exporting("http://127.0.0.1:9") as tracer:
        tracer.start_span("draftwire.generate").end()
    assert all(record.name.startswith("opentelemetry") for record in caplog.records)
