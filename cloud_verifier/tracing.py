"""A span per stream, for OpenTelemetry. Needs the `otel` extra, and only where it is used."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from draftwire import __version__
from draftwire.errors import DraftwireError, MissingDependency
from draftwire.types import ClientFrame, Finished, Open, Opened, ServerFrame, Verdict

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

NAME = "draftwire.verifier"
_SHUTDOWN_MS = 2000


@contextlib.contextmanager
def exporting(endpoint: str) -> Iterator[Tracer]:
    """A tracer whose spans go to the OTLP collector at `endpoint`, a URL of its gRPC port.

    What is left is sent on leaving, for two seconds at most. Raises `MissingDependency`.
    """
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise MissingDependency(
            "OpenTelemetry is not installed", remedy='pip install "draftwire[otel]"'
        ) from error
    resource = Resource.create({"service.name": NAME, "service.version": __version__})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=_SHUTDOWN_MS // 1000)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    try:
        yield provider.get_tracer(NAME, __version__)
    finally:
        provider.force_flush(_SHUTDOWN_MS)
        provider.shutdown()


async def traced(
    decode: Callable[[AsyncIterator[ClientFrame]], AsyncGenerator[ServerFrame]],
    frames: AsyncIterator[ClientFrame],
    tracer: Tracer,
    metadata: Iterable[tuple[str, str | bytes]],
) -> AsyncGenerator[ServerFrame]:
    """`decode(frames)` in a span, whose parent the client names in the stream's metadata.

    The span's figures are those of the stream: a generation that was cut has one for each.
    """
    from opentelemetry.trace import SpanKind, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier = {key: value for key, value in metadata if isinstance(value, str)}
    parent = TraceContextTextMapPropagator().extract(carrier)
    span = tracer.start_span("draftwire.generate", context=parent, kind=SpanKind.SERVER)
    counts = {"completion_tokens": 0, "accepted_tokens": 0, "passes": 0}
    try:
        async with contextlib.aclosing(decode(_noted(frames, span))) as answers:
            async for answer in answers:
                _note(span, answer, counts)
                yield answer
    except DraftwireError as error:
        span.set_attribute("draftwire.code", error.code)
        span.set_status(StatusCode.ERROR, error.code)
        raise
    finally:
        span.set_attributes({f"draftwire.{name}": count for name, count in counts.items()})
        span.end()


async def _noted(frames: AsyncIterator[ClientFrame], span: Span) -> AsyncIterator[ClientFrame]:
    async for frame in frames:
        if isinstance(frame, Open):
            span.set_attribute("draftwire.session", frame.session_id.hex())
            span.set_attribute("draftwire.generation", frame.generation)
            span.set_attribute("draftwire.prompt_tokens", frame.start)
        yield frame


def _note(span: Span, answer: ServerFrame, counts: dict[str, int]) -> None:
    match answer:
        case Opened():
            span.set_attribute("draftwire.model", answer.target.model)
            span.set_attribute("draftwire.cached_tokens", answer.cached)
        case Verdict():
            if not counts["completion_tokens"]:
                span.add_event("first tokens")
            counts["completion_tokens"] += answer.accepted + len(answer.next)
            counts["accepted_tokens"] += answer.accepted
            counts["passes"] += answer.timing.pass_rows > 0  # else tokens that a cut had lost
        case Finished():
            span.set_attribute("draftwire.finish_reason", answer.reason.value)
