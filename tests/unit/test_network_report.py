"""What the report of the benchmark over networks makes of a record."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from bench import network_report
from bench._network_claims import broken, claims, flowing
from bench._network_record import Record
from bench._network_run import figures
from bench._network_stats import cells
from bench._network_tables import report, virtual
from bench._settings import ADAPTIVE, CLOUD, DEFAULT, Q4, QUICK, Cell, Form
from draftwire.errors import InvalidRequest

LAN, LTE = Cell("lan", Q4), Cell("lte", Q4)
FORM = Form(
    cells=[LAN, LTE],
    settings=[CLOUD, "waiting 4", "pipelined 24/2", ADAPTIVE],
    repetitions=2,
    tokens=4,
    alone=True,
)
ABOUT = {"model": "a model", "source": "a file", "machine": "some", "cores": 2}
PLOTS = ("speed-over-rtt.svg", "gain-by-cell.svg")
Speeds = Mapping[tuple[Cell, str], float]


def run(speed: float, text: str = "t", **more: Any) -> dict[str, Any]:
    """Four tokens in two deliveries at that speed, the first of them after a quarter."""
    end_ms = 4 / speed * 1e3
    return {
        "prompt": "p",
        "deliveries": [[end_ms / 4, 1], [end_ms, 3]],
        "rounds": [[0, 0, 1], [4, 2, 3]],
        "rows": 6,
        "expected_ms": 0.0,
        "taken_ms": 0.0,
        "payload_bytes": [20, 20],
        "streams": 1,
        "text": text,
        "others": [0.01, 0.02],
        **more,
    }


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[[Speeds], Record]:
    """Two repetitions at these speeds; in the second all is twice as slow."""

    def make(speeds: Speeds) -> Record:
        record = Record.create(tmp_path / "record.jsonl", FORM, ABOUT)
        for repetition in range(2):
            for (cell, setting), speed in speeds.items():
                estimate = {"expected_ms": (11.0, 8.5)[repetition], "taken_ms": 10.0}
                adaptive = estimate if setting == ADAPTIVE else {}
                figures = run(speed / (repetition + 1), repetition=repetition, **adaptive)
                record.add(cell, setting, figures)
        return record

    return make


SPEEDS = {
    (LAN, CLOUD): 10.0,
    (LAN, "pipelined 24/2"): 30.0,
    (LTE, CLOUD): 8.0,
    (LTE, "waiting 4"): 16.0,
    (LTE, "pipelined 24/2"): 24.0,
    (LTE, ADAPTIVE): 22.8,
}


def test_ratios_are_of_the_same_repetition(recorded: Callable[[Speeds], Record]) -> None:
    lte = cells(recorded(SPEEDS))[1]
    flowing = lte.settings["pipelined 24/2"]
    assert flowing.over(lte.settings[CLOUD]) == pytest.approx([3.0, 3.0])
    assert flowing.speed == pytest.approx(18.0)
    assert lte.best("waiting", "pipelined") is flowing


def test_counts_are_per_committed_token(recorded: Callable[[Speeds], Record]) -> None:
    cloud = cells(recorded(SPEEDS))[0].settings[CLOUD]
    assert (cloud.per_token("payload_bytes"), cloud.per_token("rows")) == (10.0, 1.5)
    # Of four drafts two held, the third did not, and the fourth was not judged.
    assert cloud.rounds.acceptance_rate == pytest.approx(2 / 3)
    assert cloud.rounds.block_efficiency == pytest.approx(2.0)


def test_tokens_of_one_delivery_have_no_gap(recorded: Callable[[Speeds], Record]) -> None:
    cloud = cells(recorded(SPEEDS))[0].settings[CLOUD]
    assert cloud.ttft_ms == pytest.approx((100 + 200) / 2)
    assert cloud.tpot_ms == pytest.approx((100 + 200) / 2)
    assert cloud.gaps_ms.count == 6
    assert cloud.gaps_ms.median == 0.0


def test_claims_say_what_holds_and_what_does_not(recorded: Callable[[Speeds], Record]) -> None:
    found = {claim.text: claim for claim in claims(recorded(SPEEDS))}
    assert {text: round(claim.value, 3) for text, claim in found.items()} == {
        "speed of the controller over that of the best fixed setting, mean of 1": 0.95,
        "the same, least (lte, Q4_1, greedy)": 0.95,
        "over the best single one for all, pipelined 24/2": 0.95,
        "its speed over cloud-alone's, least (lte, Q4_1, greedy)": 2.85,
        "error of its estimate of the time per token, median over cells": 0.025,
        "error of its estimate of the time per token, median over single texts": 0.125,
        "pipelined 24/2, 60 ms away over 1 ms away": 0.8,
        "pipelined 24/2 over the best that waits, 60 ms away": 1.5,
        "pipelined 24/2 over cloud-alone, 60 ms away": 3.0,
        "texts of 1 that differ between settings": 0,
        "streams that broke": 0,
    }
    assert [text for text, claim in found.items() if not claim.holds] == [
        "over the best single one for all, pipelined 24/2",
        "pipelined 24/2, 60 ms away over 1 ms away",
    ]


def test_what_flowing_gains_is_told_for_each_drafter(
    recorded: Callable[[Speeds], Record],
) -> None:
    assert flowing(recorded(SPEEDS)).splitlines()[2:] == [
        "| Q4_1 | pipelined 24/2 | 0.80 | 1.50 | 3.00 |"
    ]


@pytest.mark.parametrize("fault", [{"text": "other"}, {"streams": 2}])
def test_a_differing_text_and_a_broken_stream_fail(
    recorded: Callable[[Speeds], Record], fault: dict[str, Any]
) -> None:
    record = recorded(SPEEDS)
    assert broken(record) == 0
    assert network_report.main([str(record.path)]) == 0
    record.add(LTE, "waiting 4", run(16.0, repetition=1) | fault)
    assert broken(record) == 1
    assert network_report.main([str(record.path)]) == 1


def test_the_table_has_a_row_for_each_setting_that_ran(
    recorded: Callable[[Speeds], Record],
) -> None:
    record = recorded(SPEEDS)
    record.add(None, "llama.cpp alone", run(40.0, repetition=0))
    text = report(record)
    assert "| pipelined 24/2 | 18.0 (12.0–24.0) | 3.00 (3.00–3.00) |" in text
    assert text.count("| waiting 4 |") == 1
    assert "| llama.cpp alone | 40.0 (40.0–40.0) | 25 | 25.0 | 1 of 1 |" in text


def test_a_record_is_read_back_without_a_line_that_was_cut(
    recorded: Callable[[Speeds], Record],
) -> None:
    record = recorded(SPEEDS)
    whole = record.path.read_text(encoding="utf-8")
    record.path.write_text(whole[:-20], encoding="utf-8")
    again = Record.read(record.path)
    assert again.form == FORM
    assert len(again) == len(record) - 1
    assert again.holds(LTE, 0, [CLOUD, ADAPTIVE])
    assert not again.holds(LTE, 1, [CLOUD, ADAPTIVE])
    with pytest.raises(InvalidRequest, match="no record"):
        Record.read(record.path.parent / "none")


def test_what_is_added_after_a_cut_line_is_not_lost(recorded: Callable[[Speeds], Record]) -> None:
    record = recorded(SPEEDS)
    whole = record.path.read_text(encoding="utf-8")
    record.path.write_text(whole[:-20], encoding="utf-8")
    Record.read(record.path).add(LTE, ADAPTIVE, run(9.0, repetition=1))
    assert len(Record.read(record.path)) == len(record)


def test_the_report_goes_between_the_lines_of_a_file(
    recorded: Callable[[Speeds], Record], tmp_path: Path
) -> None:
    page, record = tmp_path / "page.md", recorded(SPEEDS)
    page.write_text("before\n<!-- network:begin -->\nold\n<!-- network:end -->\nafter\n")
    for _ in range(2):
        assert network_report.main([str(record.path), "--into", str(page)]) == 0
    text = page.read_text()
    assert text.startswith("before\n<!-- network:begin -->\n\n| | measured |")
    assert text.endswith("<!-- network:end -->\nafter\n")
    assert "old" not in text
    page.write_text("no lines")
    with pytest.raises(InvalidRequest, match="lacks"):
        network_report.main([str(record.path), "--into", str(page)])


def test_the_matrix_on_virtual_time_has_a_table_of_its_own(tmp_path: Path) -> None:
    cell = {
        "speeds": "cpu",
        "profile": "lte",
        "rate": 0.8,
        "temperature": 0.0,
        "fixed": {"cloud-alone": 113.0, "waiting 4": 80.0},
        "adaptive": 82.0,
        "off": 0.04,
        "best": "waiting 4",
        "ratio": 1.025,
    }
    claim = {"claim": "a claim", "value": 1.025, "limit": 1.05}
    text = virtual([cell, claim])
    assert "| cpu | lte | 0.8 | 0 | waiting 4 | 80.0 | 113.0 | 82.0 | 1.025 | 4.0% |" in text
    assert "| a claim | 1.025 | ≤ 1.05 |" in text
    record, page = tmp_path / "full.jsonl", tmp_path / "page.md"
    record.write_text(f"{json.dumps(cell)}\n{json.dumps(claim)}\n")
    page.write_text("<!-- network-full:begin --><!-- network-full:end -->")
    assert network_report.main([str(record), "--into", str(page)]) == 0
    assert text.strip() in page.read_text()


@pytest.mark.slow
def test_plots_need_matplotlib(
    recorded: Callable[[Speeds], Record], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, page = tmp_path / "plots", tmp_path / "page.md"
    page.write_text("<!-- network:begin --><!-- network:end -->")
    arguments = [str(recorded(SPEEDS).path), "--plots", str(folder), "--into", str(page)]
    assert network_report.main(arguments) == 0
    if importlib.util.find_spec("matplotlib") is None:
        assert "no plots" in capsys.readouterr().err
    else:
        assert sorted(path.name for path in folder.iterdir()) == sorted(PLOTS)
        assert all(f"](plots/{name})" in page.read_text() for name in PLOTS)


@pytest.mark.parametrize("form", [QUICK, DEFAULT])
def test_each_repetition_runs_everything_once_in_an_order_of_its_own(form: Form) -> None:
    orders = [form.order(repetition) for repetition in range(form.repetitions)]
    for order in orders:
        assert {cell for cell, _ in order} == set(form.cells)
        assert len(order) == len(form.cells)
        assert all(sorted(settings) == sorted(form.settings) for _, settings in order)
    firsts = [{cell: settings[0] for cell, settings in order} for order in orders]
    assert all(len({first[cell] for first in firsts}) > 1 for cell in form.cells)


def test_figures_of_a_trace() -> None:
    def one(at_s: float, expected_ms: float | None, first: bool = False, **outcome: int) -> Any:
        return {
            "at_s": at_s,
            "expected_ms": expected_ms,
            "first": first,
            "outcome": {"sent": 0, "judged": 0, "held": 0, "rows": 1} | outcome,
        }

    got = figures(
        [
            one(1.0, None, first=True, committed=1, rows=40),
            one(1.2, 100.0, committed=3, sent=6, judged=3, held=2, rows=7),
            one(1.5, 110.0, committed=4, sent=3, judged=3, held=3, rows=4),
            one(1.6, 90.0, committed=1, judged=2, held=1),  # drafts that were never sent
        ]
    )
    assert got == {
        "rounds": [(0, 0, 1), (6, 2, 3), (3, 3, 4), (0, 0, 1)],
        "rows": 12,
        "expected_ms": 830.0,
        "taken_ms": 600.0,
    }
