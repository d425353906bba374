"""Some seconds of the soak on the toy target: what `make bench-soak` does for minutes."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("torch")
pytest.importorskip("llama_cpp")
pytest.importorskip("prometheus_client", reason="needs the cloud extra")

from bench._oracle import TableOracle
from bench.soak import SoakedVerifier, soak

pytestmark = pytest.mark.slow


def test_sessions_that_come_and_go_get_their_texts_and_leave_nothing_behind() -> None:
    oracle = TableOracle(count=60)
    with SoakedVerifier(oracle.model, sessions=64, kv_tokens=2048) as verifier:
        record = asyncio.run(soak(verifier, oracle, sessions=64, seconds=5.0))
    assert record.faults(most_spread=None) == []
    assert min(record.outcomes.ends.values()) > 0
    assert record.outcomes.reopened > 0
    assert 0 < record.outcomes.accepted < record.outcomes.drafted
    assert record.metrics["num_preemptions_total"] > 0
