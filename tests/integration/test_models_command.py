"""`draftwire models` as a person or a script meets it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_gguf
from gguf import GGUFReader

from draftwire.testing.demo import demo_model_path
from edge_client.cli import main

pytestmark = pytest.mark.models


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    return str(tiny_gguf.write_attention_model(path, chat_template="{{ messages[0].content }}"))


def test_the_demo_model_is_listed_and_need_not_be_fetched(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["models", "list"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == str(demo_model_path())
    assert main(["models", "fetch", "demo"]) == 0
    assert capsys.readouterr().out.strip() == str(demo_model_path())


def test_inspect_tells_what_the_file_says(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "inspect", tiny, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["vocabulary_size"] == 258
    assert facts["context"] == tiny_gguf.TRAINED_CONTEXT
    assert facts["eos_token_ids"] == [257]
    assert facts["size_bytes"] == Path(tiny).stat().st_size
    assert facts["quantization"].endswith("all F32")
    assert facts["parameters"] == sum(one.data.size for one in GGUFReader(tiny).tensors)
    assert main(["models", "inspect", tiny]) == 0
    name, *rows = capsys.readouterr().out.splitlines()
    assert name == "tiny"  # as the file is called
    assert rows[0].split("  ") == ["", "calls itself", "tiny llama"]
    assert any(facts["fingerprint"] in row for row in rows)


def test_the_demo_model_goes_by_the_name_it_is_known_by(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "inspect", str(demo_model_path())]) == 0
    said = capsys.readouterr().out
    assert said.startswith("SmolLM2-135M-Instruct.Q4_1\n")
    assert re.search(r"weights +Q4_1\n +parameters +134\.5 million\n", said)


def test_fit_says_it_in_words_and_in_its_exit_status(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "fit", tiny, tiny]) == 0
    assert "tiny fits tiny" in capsys.readouterr().out
    other = tiny_gguf.write_attention_model(tmp_path / "o.gguf", chat_template="{{ eos_token }}")
    assert main(["models", "fit", tiny, str(other)]) == 1
    assert "templates differ" in capsys.readouterr().out
    assert main(["models", "fit", tiny, str(demo_model_path()), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["fits"] is False


def test_what_is_not_there_is_an_error_with_its_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "inspect", "/no/such/model.gguf"]) == 1
    assert "MODEL_LOAD_FAILED" in capsys.readouterr().err


def test_a_hub_that_cannot_be_reached_is_one_line() -> None:
    command = [sys.executable, "-m", "edge_client", "models", "fetch", "owner/name"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    _, said = done.stderr.splitlines()
    assert "owner/name can't be fetched" in said
