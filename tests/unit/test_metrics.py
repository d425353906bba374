"""What the metrics say of an engine whose every step is known."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("prometheus_client", reason="needs the cloud extra")

from cloud_verifier.engine import Arrival, Departure, Detached, Engine, EngineConfig
from cloud_verifier.metrics import PrometheusObserver, serving
from cloud_verifier.sessions import Stream
from cloud_verifier.table_target import TableTarget
from cloud_verifier.target import Judgement, Row
from draftwire.errors import InvalidRequest
from draftwire.testing.table import TableModel
from draftwire.types import Cancel, ClientFrame, Draft, History, Open, ServingLimits, StopRules

MODEL = TableModel(vocabulary_size=50, states=256, seed=3)
PROMPT = (5, 6, 7)
TEXT = tuple(MODEL.generate(PROMPT, 40))
WRONG = tuple((token + 1) % 50 for token in TEXT)
PASS_S = 0.03


class Verifier(TableTarget):
    """An engine on a table model whose passes take 30 ms of a clock of its own, observed."""

    def __init__(self, num_blocks: int = 64, **config: Any) -> None:
        limits = ServingLimits(max_context=400, max_rows=9)
        super().__init__(MODEL, num_blocks=num_blocks, limits=limits)
        self.now = 0.0
        self.observer = PrometheusObserver()
        self.engine = Engine(self, EngineConfig(**config), lambda: self.now, self.observer)
        self.observer.watch(self.engine)

    def verify(self, rows: Sequence[Row]) -> list[Judgement | None]:
        self.now += PASS_S
        return super().verify(rows)

    def hear(self, stream: Stream, *frames: ClientFrame | Detached) -> list[Departure]:
        """Frames arrive together, and passes run until nothing is left to do."""
        said = self.engine.step([Arrival(stream, frame, self.now) for frame in frames])
        while self.engine.has_work:
            said += self.engine.step([])
        return said

    def open(self, number: int = 1, stream: Stream | None = None, **changes: Any) -> Stream:
        stream = stream or Stream()
        fingerprint = self.card.target.vocabulary_fingerprint
        values: dict[str, Any] = {
            "session_id": number.to_bytes(16, "big"),
            "attempt": 1,
            "generation": 1,
            "start": len(PROMPT),
            "history": History(tokens=PROMPT),
            "vocabulary_fingerprint": fingerprint,
        }
        self.hear(stream, Open(**(values | changes)))
        return stream

    def metric(self, name: str, **labels: str) -> float:
        value = self.observer.registry.get_sample_value(
            f"draftwire:{name}", {"model_name": "table", **labels}
        )
        assert value is not None, name
        return value

    def metrics(self, *names: str) -> list[float]:
        return [self.metric(name) for name in names]


def draft(at: int, tokens: Sequence[int], epoch: int = 0, credit: int = 1) -> Draft:
    return Draft(base=len(PROMPT) + at, epoch=epoch, tokens=tuple(tokens), credit=credit)


def test_an_engine_that_is_not_watched_has_no_metrics() -> None:
    assert list(PrometheusObserver().registry.collect()) == []


def test_a_rejected_draft_counts_what_held_by_place_and_what_was_wasted() -> None:
    verifier = Verifier()
    verifier.hear(verifier.open(), draft(0, (*TEXT[:3], WRONG[3], WRONG[4])))
    assert verifier.metrics(
        "spec_decode_num_drafts_total",
        "spec_decode_num_draft_tokens_total",
        "spec_decode_num_accepted_tokens_total",
        "rejections_total",
        "wasted_draft_tokens_total",
        "verdicts_total",
        "generation_tokens_total",
    ) == [1, 5, 3, 1, 2, 1, 4]
    assert [
        verifier.metric("spec_decode_num_accepted_tokens_per_pos_total", position=str(place))
        for place in range(5)
    ] == [1, 1, 1, 0, 0]


def test_a_draft_that_holds_is_no_rejection() -> None:
    verifier = Verifier()
    verifier.hear(verifier.open(), draft(0, TEXT[:4]))
    names = ("spec_decode_num_accepted_tokens_total", "rejections_total", "generation_tokens_total")
    assert verifier.metrics(*names) == [4, 0, 5]


def test_a_draft_cut_by_the_end_of_the_text_is_wasted_but_not_rejected() -> None:
    verifier = Verifier()
    stream = verifier.open(stop=StopRules(max_tokens=2))
    verifier.hear(stream, draft(0, TEXT[:2]))
    assert verifier.metrics("generation_tokens_total", "rejections_total") == [2, 0]
    assert verifier.metric("request_success_total", finished_reason="length") == 1


def test_tokens_without_drafts_are_the_clouds_alone() -> None:
    verifier = Verifier()
    verifier.hear(verifier.open(), draft(0, (), credit=6))
    assert verifier.metrics("cloud_alone_tokens_total", "spec_decode_num_drafts_total") == [6, 0]


def test_drafts_on_a_dead_branch_are_stale() -> None:
    verifier = Verifier()
    stream = verifier.open()
    verifier.hear(stream, draft(0, WRONG[:4]))
    verifier.hear(stream, draft(4, WRONG[4:7]))
    assert verifier.metric("stale_draft_tokens_total") == 3


def test_drafts_behind_a_rejection_that_no_pass_judged_are_stale() -> None:
    verifier = Verifier()
    verifier.hear(verifier.open(), draft(0, WRONG[:8]), draft(8, WRONG[8:11]))
    assert verifier.metrics("wasted_draft_tokens_total", "stale_draft_tokens_total") == [8, 3]


def test_the_first_verdict_is_timed_from_the_open_and_others_from_the_one_before() -> None:
    verifier = Verifier()
    stream = verifier.open()
    verifier.now += 0.1
    verifier.hear(stream, draft(0, (), credit=1))
    verifier.now += 0.5
    verifier.hear(stream, draft(1, (), credit=1))
    assert verifier.metric("time_to_first_token_seconds_sum") == pytest.approx(0.1 + PASS_S)
    assert verifier.metric("time_to_first_token_seconds_bucket", le="0.1") == 0
    assert verifier.metric("time_to_first_token_seconds_bucket", le="0.15") == 1
    assert verifier.metric("inter_token_latency_seconds_sum") == pytest.approx(0.5 + PASS_S)
    assert verifier.metric("inter_token_latency_seconds_bucket", le="+Inf") == 1


def test_passes_are_timed_and_their_rows_counted() -> None:
    verifier = Verifier()
    verifier.hear(verifier.open(), draft(0, TEXT[:4]))
    names = ("pass_time_seconds_sum", "pass_rows_sum", "pass_sessions_sum", "pass_rows_count")
    assert verifier.metrics(*names) == [pytest.approx(PASS_S), len(PROMPT) + 4, 1, 1]
    assert verifier.metric("pass_rows_bucket", le="4") == 0
    assert verifier.metric("pass_rows_bucket", le="8") == 1


def test_gauges_follow_sessions_and_blocks() -> None:
    verifier = Verifier(num_blocks=64)
    names = ("num_requests_running", "sessions_idle", "kv_cache_usage_perc")
    stream = verifier.open()
    verifier.hear(stream, draft(0, (), credit=1))
    assert verifier.metrics(*names) == [1, 0, 1 / 64]
    verifier.hear(stream, Cancel())
    assert verifier.metrics(*names) == [0, 1, 0]


def test_every_block_is_free_cached_or_held() -> None:
    verifier = Verifier(num_blocks=64)
    stream = verifier.open(history=History(tokens=[1] * 33), start=33)

    def blocks() -> list[float]:
        states = ("free", "cached", "held")
        return [verifier.metric("kv_cache_blocks", state=state) for state in states]

    assert blocks() == [64, 0, 0]
    verifier.hear(stream, Draft(base=33, epoch=0, credit=1))
    assert blocks() == [61, 0, 3]
    verifier.hear(stream, Cancel())
    assert blocks() == [62, 2, 0]  # what was not full is worth nothing


def rivals() -> tuple[Verifier, list[Arrival]]:
    """Two sessions that each need all there is of KV memory, and their first drafts."""
    verifier = Verifier(num_blocks=4)
    arrivals = []
    for number in (1, 2):
        prompt = History(tokens=[number] * 49)
        stream = verifier.open(number, history=prompt, start=49, stop=StopRules(max_tokens=9))
        arrivals.append(Arrival(stream, Draft(base=49, epoch=0, credit=1), verifier.now))
    return verifier, arrivals


def test_a_session_that_finds_no_blocks_waits() -> None:
    verifier, arrivals = rivals()
    verifier.engine.step(arrivals)
    assert verifier.metrics("num_requests_running", "num_requests_waiting") == [1, 1]
    verifier.now += EngineConfig().kv_hold_s
    verifier.engine.step([])
    assert verifier.metrics("num_requests_running", "num_requests_waiting") == [2, 0]


def test_preemptions_are_counted() -> None:
    verifier, arrivals = rivals()
    verifier.engine.step(arrivals)
    verifier.now += EngineConfig().kv_hold_s
    verifier.hear(Stream())
    assert verifier.metric("num_preemptions_total") == 1
    assert verifier.metric("generation_tokens_total") == 2


def test_sessions_whose_drafts_never_hold_are_limited() -> None:
    verifier = Verifier()
    stream = verifier.open()
    labels = ("reduced", "none")
    assert [verifier.metric("sessions_limited", allowance=label) for label in labels] == [0, 0]
    for round_number in range(16):
        verifier.hear(stream, draft(round_number, WRONG[round_number:][:2], epoch=round_number))
    assert [verifier.metric("sessions_limited", allowance=label) for label in labels] == [0, 1]


def test_a_session_that_comes_back_is_resumed_and_its_prompt_counts_once() -> None:
    verifier = Verifier()
    prompt = tuple(range(1, 34))
    options: dict[str, Any] = {"history": History(tokens=prompt), "start": 33}
    stream = verifier.open(**options)
    verifier.hear(stream, Draft(base=33, epoch=0, credit=1))
    verifier.hear(stream, Detached())
    verifier.open(attempt=2, **options)
    names = ("sessions_resumed_total", "prompt_tokens_total")
    assert verifier.metrics(*names) == [1, 33]
    assert verifier.metrics("prefix_cache_queries_total", "prefix_cache_hits_total") == [66, 32]


def test_an_end_told_twice_counts_once() -> None:
    verifier = Verifier()
    stream = verifier.open()
    verifier.hear(stream, Cancel())
    verifier.open(attempt=2)
    assert verifier.metric("request_success_total", finished_reason="cancelled") == 1


def test_metrics_are_served_until_the_context_ends() -> None:
    verifier = Verifier()
    with (
        serving(verifier.observer.registry, "127.0.0.1:0") as address,
        urllib.request.urlopen(f"http://{address}/metrics") as response,
    ):
        assert b"\ndraftwire:num_requests_running{" in response.read()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://{address}/metrics")


@pytest.mark.parametrize("address", ["taken", "nowhere", "256.0.0.1:1", "127.0.0.1:99999"])
def test_an_address_that_cannot_be_had_is_refused(address: str) -> None:
    registry = PrometheusObserver().registry
    with (
        serving(registry, "127.0.0.1:0") as taken,
        pytest.raises(InvalidRequest, match="can't serve metrics"),
        serving(registry, taken if address == "taken" else address),
    ):
        pass
