"""A verifier that is scraped while devices use it: its metrics, its dashboard and its page."""

from __future__ import annotations

import asyncio
import functools
import http.client
import json
import logging
import re
import urllib.request
from pathlib import Path

import pytest
from table_client import MODEL, on_a_loop, table_client

pytest.importorskip("prometheus_client", reason="needs the cloud extra")

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from cloud_verifier.engine import Engine
from cloud_verifier.metrics import PrometheusObserver, serving
from cloud_verifier.server import VerifierServer
from cloud_verifier.table_target import TableTarget
from draftwire.errors import PromptTooLong
from draftwire.types import ServingLimits
from edge_client.results import Summary

ROOT = Path(__file__).resolve().parents[2]


class Scraped:
    """Two devices' generations, and what the verifier then reports."""

    def __init__(self, summaries: list[Summary], text: str) -> None:
        self.summaries = summaries
        families = list(text_string_to_metric_families(text))
        self.types = {f"{f.name}_total" * (f.type == "counter") or f.name: f.type for f in families}
        self.samples: list[Sample] = [sample for f in families for sample in f.samples]

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the series of that name which have these labels."""
        values = [
            sample.value
            for sample in self.samples
            if sample.name == f"draftwire:{name}" and labels.items() <= sample.labels.items()
        ]
        assert values, name
        return sum(values)


async def scrape(*, refused: bool = False) -> Scraped:
    observer = PrometheusObserver()
    target = TableTarget(MODEL, limits=ServingLimits(max_context=400))
    engine = Engine(target, observer=observer)
    observer.watch(engine)

    async def generate(address: str, num_draft_tokens: int) -> Summary:
        async with table_client(address) as client:
            stream = client.generate("5 6 7", max_tokens=80, num_draft_tokens=num_draft_tokens)
            await stream.read()
            return stream.summary

    async with VerifierServer(engine, "127.0.0.1:0", grace_s=0.0) as server:
        tasks = [generate(server.address, count) for count in (2, 5)]
        summaries = await asyncio.gather(*tasks)
        if refused:
            async with table_client(server.address) as client:
                with pytest.raises(PromptTooLong):
                    await client.generate([5] * 400).read()
        with serving(observer.registry, "127.0.0.1:0") as address:
            request = functools.partial(urllib.request.urlopen, f"http://{address}/metrics")
            with await asyncio.to_thread(request) as response:
                return Scraped(list(summaries), response.read().decode())


@on_a_loop
async def test_the_metrics_add_up_to_the_devices_summaries() -> None:
    scraped = await scrape()
    metric, summaries = scraped.metric, scraped.summaries
    tokens = sum(len(summary.token_ids) for summary in summaries)
    assert metric("generation_tokens_total") == tokens
    assert metric("prompt_tokens_total") == sum(s.usage.prompt_tokens for s in summaries)
    assert metric("verdicts_total") == sum(s.rounds for s in summaries)
    assert metric("spec_decode_num_draft_tokens_total") == sum(s.usage.drafted for s in summaries)
    accepted = sum(s.usage.accepted for s in summaries)
    assert metric("spec_decode_num_accepted_tokens_total") == accepted > 0
    assert metric("spec_decode_num_accepted_tokens_per_pos_total") == accepted
    assert (
        metric("wasted_draft_tokens_total")
        == metric("spec_decode_num_draft_tokens_total") - accepted
    )
    assert metric("request_success_total", finished_reason="length") == len(summaries)
    assert metric("time_to_first_token_seconds_count") == len(summaries)
    later = metric("verdicts_total") - len(summaries)
    assert metric("inter_token_latency_seconds_count") == later


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5",
        "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8,text/plain;q=0.3",
        "text/plain;version=1.0.0;escaping=underscores",
        "*/*",
    ],
    ids=["Prometheus 2", "Prometheus 3", "legacy names", "anything"],
)
def test_names_are_the_same_in_whichever_format_they_are_asked_for(accept: str) -> None:
    observer = PrometheusObserver()
    observer.watch(Engine(TableTarget(MODEL), observer=observer))
    with serving(observer.registry, "127.0.0.1:0") as address:
        connection = http.client.HTTPConnection(address)
        connection.request("GET", "/metrics", headers={"Accept": accept})
        lines = connection.getresponse().read().decode().splitlines()
        connection.close()
    names = [line for line in lines if not line.startswith("#")]
    assert len(names) > 20
    assert all(line.startswith("draftwire:") for line in names)


@on_a_loop
async def test_a_refused_stream_is_counted_and_logged_by_its_code(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "cloud_verifier")
    scraped = await scrape(refused=True)
    assert scraped.metric("errors_total", code="PROMPT_TOO_LONG") == 1
    assert scraped.metric("errors_total") == 1
    assert scraped.metric("request_success_total") == 2
    [record] = [vars(record) for record in caplog.records if record.message == "refused"]
    assert (record["code"], record["levelname"]) == ("PROMPT_TOO_LONG", "INFO")
    assert len(bytes.fromhex(record["session"])) == 16


@on_a_loop
async def test_payload_bytes_are_those_that_the_devices_counted() -> None:
    scraped = await scrape()
    counted = [summary.bytes for summary in scraped.summaries]
    metric = scraped.metric
    assert metric("payload_bytes_total", frame="draft") == sum(b.drafts_up for b in counted)
    assert metric("payload_bytes_total", frame="verdict") == sum(b.verdicts_down for b in counted)
    assert metric("payload_bytes_total", direction="down") == sum(b.down for b in counted)


@on_a_loop
async def test_the_dashboard_asks_only_for_metrics_that_there_are() -> None:
    scraped = await scrape()
    dashboard = json.loads((ROOT / "deploy/grafana/draftwire.json").read_text(encoding="utf-8"))
    targets = [t for panel in dashboard["panels"] for t in panel.get("targets", [])]
    asked = {name for t in targets for name in re.findall(r"draftwire:\w+", t["expr"])}
    assert len(asked) > 20
    assert asked <= {sample.name for sample in scraped.samples}


@on_a_loop
async def test_the_page_on_operations_lists_every_metric_with_its_type() -> None:
    scraped = await scrape()
    page = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| `(draftwire:\w+)`[^|]*\| (\w+) \|", page, re.MULTILINE))
    assert listed == scraped.types
