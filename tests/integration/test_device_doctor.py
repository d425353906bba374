"""`draftwire doctor` on the demo pair, and where there is no verifier or another vocabulary."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny_gguf

from edge_client.cli import main

pytestmark = pytest.mark.models


@pytest.mark.slow
def test_it_measures_both_sides_and_says_what_to_expect(
    verifier: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--json", "--threads", "1", "--verifier", verifier]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["threads"] for one in told["drafting"]] == [1]
    assert told["acceptance"] > 0.7
    assert 0 < told["draft_ms"] < told["pass_one_token_ms"] + told["rtt_ms"] + 1000
    assert told["expected"]["mode"] in ("flowing", "waiting", "cloud-alone")
    assert told["expected_speedup"] >= 1.0
    assert len(told["at_other_rtts"]) == 5


def test_without_a_verifier_it_measures_drafting_within_the_profiles_limits(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor", "--threads", "1", "--profile", "iphone"]) == 0
    told = capsys.readouterr().out
    assert "use --threads 1 --context 2048, and --watts 4,1" in told
    assert "no verifier was asked" in told
    assert "expect" not in told.replace("to expect", "")


def test_a_draft_model_that_does_not_fit_is_refused_by_its_exit_status(
    verifier: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = str(tiny_gguf.write_attention_model(tmp_path / "tiny.gguf"))
    assert main(["doctor", "--model", tiny, "--verifier", verifier, "--threads", "1"]) == 1
    assert "VOCABULARY_MISMATCH" in capsys.readouterr().err
