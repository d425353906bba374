"""Some seconds of the soak on the toy target: what `make soak` does for half an hour."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("torch")
pytest.importorskip("llama_cpp")
pytest.importorskip("prometheus_client", reason="needs the cloud extra")

from bench._oracle import TableOracle
from bench.soak import Soak, serving

pytestmark = pytest.mark.slow

TABLE = {"sessions": 64, "kv_tokens": 2048}


def test_sessions_that_come_and_go_get_their_texts_and_leave_nothing_behind() -> None:
    oracle = TableOracle(count=60)
    with serving(oracle.model, **TABLE) as verifier:
        record = asyncio.run(Soak([verifier], oracle, sessions=64, seconds=5.0).run())
    assert record.faults(most_spread=None, most_files=None) == []
    assert min(record.outcomes.ends.values()) > 0
    assert record.outcomes.reopened > 0
    assert 0 < record.outcomes.accepted < record.outcomes.drafted
    assert record.metrics["num_preemptions_total"] > 0


def test_neither_side_grows_while_verifiers_restart_and_apps_are_killed() -> None:
    oracle = TableOracle(count=60)
    with serving(oracle.model, **TABLE) as steady, serving(oracle.model, **TABLE) as restarted:
        soak = Soak([steady, restarted], oracle, sessions=64, seconds=120.0)
        record = asyncio.run(soak.run())
    # How many connections there are just now is another matter; that none is left is in `faults`.
    assert record.faults(most_spread=0.1, most_files=None) == []
    assert restarted.restarts >= 4
    assert min(record.outcomes.disturbed.values()) > 0
