"""A trace: written by any controller, read back, drawn."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from bench._virtual import World, measure
from draftwire.errors import InvalidRequest, MissingDependency
from edge_client.cli import main
from edge_client.controller import AdaptiveController
from edge_client.plan import FixedController, Plan
from edge_client.trace import TraceFile, read_trace
from edge_client.trace_chart import chart, plot


def traced(path: Path, texts: int = 2) -> Path:
    """A trace of some texts, by a controller that is told apart and one that is fixed."""
    file = TraceFile(path)
    controller = AdaptiveController()
    for _ in range(texts):
        measure(World(rtt_ms=60, rate=0.8), file.of(controller), 60)
    measure(World(rtt_ms=60, rate=0.8), file.of(FixedController(Plan.waiting(4))), 20)
    file.close()
    return path


def test_a_round_is_a_line_with_inputs_estimates_choice_and_outcome(tmp_path: Path) -> None:
    rounds = read_trace(traced(tmp_path / "trace"))
    assert {line["generation"] for line in rounds} == {1, 2, 3}
    assert sum(line["outcome"]["committed"] for line in rounds) == 60 + 60 + 20
    second = [line for line in rounds if line["generation"] == 2]
    last = second[-1]
    assert last["estimates"]["rtt_ms"] == pytest.approx(60, abs=1)
    assert "flowing" in {line["under"]["mode"] for line in second}
    assert last["options"][0]["mode"] == "cloud-alone"
    assert last["options"][last["chosen"]]["ms"] == last["next_ms"]
    fixed = rounds[-1]
    assert (fixed["under"]["mode"], fixed["under"]["window"]) == ("waiting", 4)
    assert fixed["expected_ms"] is None


def test_a_trace_is_added_to(tmp_path: Path) -> None:
    path = traced(tmp_path / "trace", texts=1)
    before = len(read_trace(path))
    assert len(read_trace(traced(path, texts=1))) > before


def test_the_chart_shows_values_over_time(tmp_path: Path) -> None:
    text = chart(read_trace(traced(tmp_path / "trace")), width=40)
    lines = text.splitlines()
    assert [line[:11].strip() for line in lines[:-1]] == [
        *("drafts sent", "window", "acceptance", "draft", "RTT", "pass", "speed", "mode")
    ]
    assert "f" in lines[-2][12:52]
    assert "w" in lines[-2][12:52]
    assert "140 tokens" in lines[-1]
    assert lines[3].endswith("24 … 24 ms")
    assert lines[4].endswith("60 … 60 ms")


def test_what_never_was_is_told_from_what_was_nothing_and_figures_are_plain() -> None:
    line = {
        "generation": 1,
        "under": {"mode": "cloud-alone", "window": 0},
        "drafts": {"mean_ms": None},
        "outcome": {"sent": 0, "judged": 0, "held": 0, "rtt_ms": 1234.5, "pass_ms": 0.02}
        | {"committed": 1},
    }
    lines = chart([line | {"at_s": at} for at in (0.0, 1.0)], width=2).splitlines()
    assert lines[0] == "drafts sent ▁▁ 0 … 0"
    assert lines[2] == " acceptance    none"
    assert lines[3] == "      draft    none"
    assert lines[4] == "        RTT ▅▅ 1234 … 1234 ms"
    assert lines[5] == "       pass ▅▅ 0.02 … 0.02 ms"


def test_the_command_draws_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", str(traced(tmp_path / "trace"))]) == 0
    assert "acceptance" in capsys.readouterr().out


@pytest.mark.slow
def test_an_image_needs_matplotlib(tmp_path: Path) -> None:
    rounds, image = read_trace(traced(tmp_path / "trace")), tmp_path / "trace.png"
    if importlib.util.find_spec("matplotlib") is None:
        with pytest.raises(MissingDependency, match="matplotlib"):
            plot(rounds, image)
    else:
        plot(rounds, image)
        assert image.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("text", ["no json", json.dumps({"a": 1}), "3"])
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(InvalidRequest):
        read_trace(path)


def test_an_empty_trace_and_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="empty"):
        chart([])
    with pytest.raises(InvalidRequest):
        read_trace(tmp_path / "none")
    with pytest.raises(InvalidRequest):
        TraceFile(tmp_path / "none" / "trace")


@pytest.mark.parametrize("watts", ["4", "4,x", "nan,1"])
def test_watts_are_two_figures(watts: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["generate", "hello", "--objective", "energy", "--watts", watts])
    assert "4,1" in capsys.readouterr().err
