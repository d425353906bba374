"""The benchmark over networks, in small: processes, link and record are the real ones."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("llama_cpp")

from bench import network
from bench._network_record import Record

SMALL = ["--model", "table", "--tokens", "24", "--repetitions", "1", "--others", "1"]
SETTINGS = ["cloud-alone", "waiting 4", "run-on 8/2", "controller"]


@pytest.fixture(autouse=True)
def same_cores_afterwards() -> Iterator[None]:
    cores = os.sched_getaffinity(0)
    yield
    assert os.sched_getaffinity(0) == cores


@pytest.mark.slow
def test_a_small_run_is_recorded_and_gone_on_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "record.jsonl"
    small = [*SMALL, "--record", str(path), "--settings", *SETTINGS]
    assert network.main([*small, "--cells", "5g, α 0.8"]) == 0
    assert "| waiting 4 |" in capsys.readouterr().out
    record = Record.read(path)
    assert {(run["temperature"], run["setting"]) for run in record.runs} == {
        (temperature, setting) for temperature in (0.0, 0.8) for setting in SETTINGS
    }
    for run in record.runs:
        assert sum(count for _, count in run["deliveries"]) == 24
        assert sum(committed for _, _, committed in run["rounds"]) == 24
        assert min(run["socket_bytes"]) > 0
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    lost = json.loads(lines[-1])
    path.write_text("".join(lines[:-1]), encoding="utf-8")
    assert network.main(["--resume", str(path)]) == 0
    again = Record.read(path)
    kept = [run for run in record.runs if run["temperature"] != lost["temperature"]]
    assert len(again) == len(record)
    assert [run for run in again.runs if run in record.runs] == kept  # the others ran again


@pytest.mark.slow
def test_a_network_that_changes_and_stalls_breaks_no_stream(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    small = [*SMALL, "--record", str(path), "--settings", "waiting 4"]
    assert network.main([*small, "--cells", "changing, α 0.6, greedy"]) == 0
    [run] = Record.read(path).runs
    pairs = itertools.pairwise(at_ms for at_ms, _ in run["deliveries"])
    assert max(after - before for before, after in pairs) >= 2900
    assert run["streams"] == 1
