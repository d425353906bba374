"""bench.gpu_engine runs to its end, on a CPU with a toy, and tells right logits from wrong ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from bench import _gpu_ways, gpu_engine  # noqa: E402

pytestmark = pytest.mark.models


def test_the_toy_is_measured_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        torch.nn.attention.flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True
    )
    command = "--tiny --device cpu --context 20 --sessions 1 3 --drafts 0 2 --repeats 1"
    files = ["--json", str(tmp_path / "r.json"), "--markdown", str(tmp_path / "r.md")]
    assert gpu_engine.main([*command.split(), *files]) == 0
    report = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    cases = [(r["way"], r["sessions"], r["drafts"]) for r in report["results"]]
    assert cases == [
        (way, sessions, drafts)
        for way in ("plain", "sdpa", "flex")
        for sessions in (1, 3)
        for drafts in (0, 2)
    ]
    compared = [r for r in report["results"] if r["difference"] is not None]
    assert {r["way"] for r in compared} == {"flex"}
    assert all(r["difference"] < 1e-4 and r["unexplained"] == 0 for r in compared)
    table = (tmp_path / "r.md").read_text(encoding="utf-8")
    assert table == capsys.readouterr().out
    assert "| sessions | K | floor | plain | sdpa | flex |" in table


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert gpu_engine.main([]) == 0
    assert capsys.readouterr().out == "There is no CUDA device here: nothing to measure.\n"


def test_a_token_that_no_rounding_explains_is_wrong() -> None:
    want = torch.tensor([[0.0, 10.0, 1.0], [5.0, 4.9, 0.0]])
    close = torch.tensor([[0.0, 10.0, 1.1], [4.9, 5.0, 0.0]])
    wrong = torch.tensor([[10.0, 0.0, 1.0], [5.0, 4.9, 0.0]])
    assert _gpu_ways._compare(close, want) == {
        "difference": pytest.approx(0.01),
        "agreement": 0.5,
        "unexplained": 0,
    }
    for logits in (wrong, want * float("nan")):
        fields = _gpu_ways._compare(logits, want)
        made = _gpu_ways.Measured(way="w", sessions=1, drafts=0, median_ms=1, floor_ms=1, **fields)
        assert made.wrong
