"""Exporting a model as ONNX: what is written, checked and refused."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")

import tiny_models
import tiny_onnx
import torch
from llama_drafting import text_of
from transformers import AutoModelForCausalLM

from cloud_verifier.export import export
from cloud_verifier.gguf_conversion import convert
from cloud_verifier.progress import step
from draftwire.errors import CannotRollBack, InvalidRequest, MissingDependency
from draftwire.testing.demo import demo_model_path
from edge_client.draft_model import drafter_of, load_model

pytestmark = [
    pytest.mark.models,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


def test_fewer_bits_are_written_after_float32_was_found_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloud_verifier.export.step", partial(step, every_s=0.01))
    tiny_onnx.write_source(tiny_models.llama(), tmp_path / "source")
    said: list[str] = []
    written = export(str(tmp_path / "source"), tmp_path / "out", weights="int8", report=said.append)
    assert "float32: 320 of 320 tokens are the source's" in said
    assert any(line.startswith("int8: ") for line in said)
    assert any(re.match(r"comparing again: prompt \d+ of 20, ", line) for line in said)
    model = load_model(written, threads=1)
    assert model.name == "source"
    assert model.vocabulary_size == tiny_models.VOCABULARY
    assert model.trained_context == 256
    assert model.tokenizer.encode_chat([{"role": "user", "content": "!"}])[-1:] == [96]

    async def drafted() -> list[int]:
        drafter = drafter_of(model)
        tokens = await text_of(drafter, [1, 2, 3], 8)
        await drafter.close()
        return tokens

    assert len(asyncio.run(drafted())) == 8
    model.close()
    with pytest.raises(InvalidRequest, match="not empty"):
        export(str(tmp_path / "source"), tmp_path / "out", weights="int8", report=said.append)


def test_a_model_that_cant_be_rewound_is_not_written(tmp_path: Path) -> None:
    tiny_models.save(tiny_models.mamba(), tmp_path / "source")
    with pytest.raises(CannotRollBack):
        export(str(tmp_path / "source"), tmp_path / "out", weights="int8", report=lambda _: None)
    assert not (tmp_path / "out").exists()


def test_without_the_extra_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingDependency, match=r"draftwire\[export\]"):
        export(str(tmp_path), tmp_path / "out", weights="int8", report=lambda _: None)


def test_the_devices_command_says_so_too_where_there_is_no_torch() -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "from edge_client.cli import main; sys.exit(main(['export-onnx', 'x']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "MISSING_DEPENDENCY: exporting takes the package torch" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_demo_model_in_onnx_writes_what_transformers_does(tmp_path: Path) -> None:
    said: list[str] = []
    written = export(
        str(demo_model_path()), tmp_path / "out", weights="float32", report=said.append
    )
    assert "float32: 320 of 320 tokens are the source's" in said
    source = AutoModelForCausalLM.from_pretrained(
        convert(demo_model_path(), progress=said.append), dtype=torch.float32
    )
    model = load_model(written, threads=1)
    prompt = model.tokenizer.encode_chat([{"role": "user", "content": "Name three colours."}])

    async def drafted() -> list[int]:
        drafter = drafter_of(model)
        tokens = await text_of(drafter, prompt, 24)
        await drafter.close()
        return tokens

    text = asyncio.run(drafted())
    with torch.inference_mode():
        logits = source(torch.tensor([prompt + text])).logits[0]
    assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == text
    model.close()
