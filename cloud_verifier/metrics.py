"""Prometheus metrics of a verifier, under the names of vLLM's where it has them.

They are made from a `Tally` and the engine when they are asked for. Needs the `cloud` extra.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, make_wsgi_app, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from cloud_verifier.engine import Engine
from cloud_verifier.tally import Tally
from draftwire.errors import InvalidRequest
from draftwire.reason import reason

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

PREFIX = "draftwire:"


class PrometheusObserver(Tally):
    """Observes one engine: give it to the engine, then the engine to `watch`.

    Until then there are no metrics. `registry` is what to scrape.
    """

    def __init__(self) -> None:
        super().__init__()
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self._engine: Engine | None = None

    def watch(self, engine: Engine) -> None:
        """Read the gauges from this engine, whose model names the metrics."""
        self.held_by_place.update(dict.fromkeys(range(engine.card.limits.max_rows - 1), 0))
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """All metrics as they are now; called by the registry, on any thread."""
        if self._engine is None:
            return
        model = self._engine.card.target.model
        yield from _gauges(self._engine, model)
        for name, about, total in (
            ("prompt_tokens", "Prompt tokens of the generations opened.", self.prompt_tokens),
            ("generation_tokens", "Tokens committed.", self.committed),
            (
                "prefix_cache_queries",
                "Prompt tokens looked up in the KV cache.",
                self.looked_up,
            ),
            ("prefix_cache_hits", "Of those, tokens found there.", self.found),
            ("num_preemptions", "Times a session lost its KV to another.", self.preemptions),
            ("spec_decode_num_drafts", "Verdicts on at least one draft token.", self.drafts),
            ("spec_decode_num_draft_tokens", "Draft tokens judged.", self.draft_tokens),
            ("spec_decode_num_accepted_tokens", "Draft tokens accepted.", self.accepted_tokens),
            ("rejections", "Verdicts that rejected a draft token.", self.rejections),
            ("verdicts", "Verdicts: a session's part of a pass.", self.verdicts),
            ("wasted_draft_tokens", "Draft tokens judged and not accepted.", self.wasted_tokens),
            ("stale_draft_tokens", "Draft tokens dropped without judgement.", self.stale_tokens),
            ("cloud_alone_tokens", "Tokens committed with no draft judged.", self.cloud_alone),
            ("sessions_resumed", "Generations gone on with on a new stream.", self.resumed),
            ("kv_block_evictions", "Cached blocks given away.", self._engine.pool.evictions),
            ("connections", "Connections that brought a call.", self.connections),
            ("tls_handshakes", "TLS handshakes begun, whatever came of them.", self.handshakes),
        ):
            yield _counter(name, about, model, {(): total})
        for name, about, labels, totals in (
            (
                "spec_decode_num_accepted_tokens_per_pos",
                "Draft tokens accepted, by place in the draft.",
                ("position",),
                _labelled(self.held_by_place),
            ),
            (
                "request_success",
                "Generations ended by themselves or by their client.",
                ("finished_reason",),
                _labelled(self.ends),
            ),
            (
                "generations",
                "Generations opened, by how drafts are judged; typical is lossy.",
                ("verify_mode",),
                _labelled(self.modes),
            ),
            (
                "errors",
                "Streams ended by an error.",
                ("code",),
                _labelled(self.errors),
            ),
            (
                "payload_bytes",
                "Payload of frames, gRPC's framing apart.",
                ("direction", "frame"),
                _labelled(self.up_bytes, "up") | _labelled(self.down_bytes, "down"),
            ),
        ):
            yield _counter(name, about, model, totals, labels)
        for name, about, values in (
            ("time_to_first_token_seconds", "From open to first verdict.", self.ttft_s),
            ("inter_token_latency_seconds", "Between verdicts.", self.itl_s),
            ("request_queue_time_seconds", "From ready to pass, per verdict.", self.queue_s),
            ("pass_time_seconds", "Time of a pass.", self.pass_s),
            ("pass_rows", "Tokens computed by a pass.", self.rows_of_pass),
            ("pass_sessions", "Sessions that took part in a pass.", self.sessions_of_pass),
        ):
            histogram = HistogramMetricFamily(PREFIX + name, about, labels=["model_name"])
            histogram.add_metric([model], values.buckets(), values.total)
            yield histogram


def _gauges(engine: Engine, model: str) -> Iterator[Metric]:
    """Read from the engine at work: every number is right, two need not be of the same moment."""
    active, full = list(engine.active.values()), engine.card.limits.max_rows - 1
    waiting = sum(session.ready and not session.kv.blocks for session in active)
    for name, about, value in (
        ("num_requests_running", "Generations in flight.", len(active) - waiting),
        ("num_requests_waiting", "Generations that wait for KV memory.", waiting),
        ("sessions_idle", "Sessions kept for their next turn.", len(engine.idle)),
        (
            "kv_cache_usage_perc",
            "Share of KV blocks held by sessions; 1 is all.",
            engine.pool.held / engine.pool.num_blocks,
        ),
        ("load_percent", "Share of the passes' budget in use.", engine.hint.current.load_percent),
        (
            "suggested_draft_tokens",
            "Drafts a round that serve all sessions best; 0 while unknown.",
            engine.hint.current.suggested_k,
        ),
    ):
        gauge = GaugeMetricFamily(PREFIX + name, about, labels=["model_name"])
        gauge.add_metric([model], value)
        yield gauge
    pool = engine.pool
    blocks = GaugeMetricFamily(
        PREFIX + "kv_cache_blocks", "KV blocks by state.", labels=["model_name", "state"]
    )
    for state, count in (("free", pool.free), ("cached", pool.cached), ("held", pool.held)):
        blocks.add_metric([model, state], count)
    yield blocks
    allowances = [session.allowance.drafts for session in active]
    limited = GaugeMetricFamily(
        PREFIX + "sessions_limited",
        "Generations in flight whose drafts are judged in part or not at all.",
        labels=["model_name", "allowance"],
    )
    limited.add_metric([model, "reduced"], sum(0 < allowed < full for allowed in allowances))
    limited.add_metric([model, "none"], allowances.count(0))
    yield limited


def _labelled(totals: Counter[Any], *labels: str) -> dict[tuple[str, ...], int]:
    return {(*labels, str(value)): total for value, total in totals.copy().items()}


def _counter(
    name: str,
    about: str,
    model: str,
    totals: Mapping[tuple[str, ...], int],
    labels: Sequence[str] = (),
) -> Metric:
    counter = CounterMetricFamily(PREFIX + name, about, labels=["model_name", *labels])
    for values, total in totals.items():
        counter.add_metric([model, *values], total)
    return counter


@contextlib.contextmanager
def serving(registry: CollectorRegistry, listen: str) -> Iterator[str]:
    """Serve a registry at http://`listen`/metrics, `HOST:PORT`; gives the address, port and all.

    Raises `InvalidRequest` if the address can't be had.
    """
    host, _, port = listen.rpartition(":")
    try:
        server, thread = start_http_server(int(port), host.strip("[]"), registry)
    except (OSError, OverflowError, ValueError) as error:
        raise InvalidRequest(
            f"can't serve metrics on {listen}: {reason(error)}",
            remedy="it may be in use; give another --metrics HOST:PORT",
        ) from error
    server.set_app(_in_plain_text(make_wsgi_app(registry)))
    try:
        yield f"{host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _in_plain_text(app: WSGIApplication) -> WSGIApplication:
    """Give every scraper the classic text format, whichever it would rather have.

    In OpenMetrics, prometheus_client writes `draftwire_` for `draftwire:` unless it is asked for
    names in UTF-8, which Prometheus 2 does not do.
    """

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        return app({**environ, "HTTP_ACCEPT": "text/plain"}, start_response)

    return answer
