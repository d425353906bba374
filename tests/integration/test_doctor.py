"""`draftwire-verifier doctor` says of a model what loading it turns out to take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import tiny_gguf  # noqa: E402
import tiny_models  # noqa: E402

from cloud_verifier.cli import main  # noqa: E402
from cloud_verifier.doctor import lines  # noqa: E402
from cloud_verifier.hf_target import HFTarget  # noqa: E402
from cloud_verifier.inspection import examine  # noqa: E402
from draftwire.errors import CannotRollBack, ModelNotFound  # noqa: E402

pytestmark = pytest.mark.models


@pytest.mark.parametrize("name", sorted(tiny_models.SERVED))
def test_the_sizes_are_those_of_the_loaded_target(name: str, tmp_path: Path) -> None:
    source = str(tiny_models.save(tiny_models.SERVED[name](), tmp_path))
    model = examine(source).model
    assert model is not None
    target = HFTarget.load(source, kv_tokens=64, dtype="float32", device="cpu", threads=1)
    with target.plain() as loaded:
        weights = sum(parameter.nbytes for parameter in loaded.parameters())
        count = sum(parameter.numel() for parameter in loaded.parameters())
    (fit,) = (f for f in model.fits if (f.device, f.dtype) == ("cpu", "float32"))
    assert model.parameters == count
    assert fit.weights_bytes == weights
    assert fit.kv_bytes_per_token == target.kv_bytes / 64
    assert fit.attention == "sdpa"
    assert "CUDA" in fit.refused["varlen"] or name == "gemma2"
    half = next(f for f in model.fits if (f.device, f.dtype) == ("cpu", "bfloat16"))
    assert half.weights_bytes * 2 == fit.weights_bytes
    assert half.kv_bytes_per_token * 2 == fit.kv_bytes_per_token
    target.close()


def test_kv_fits_into_the_memory_that_the_weights_leave(tmp_path: Path) -> None:
    report = examine(str(tiny_models.save(tiny_models.llama(), tmp_path)))
    assert report.model is not None
    free = {device.device: device.free_bytes for device in report.devices}
    for fit in report.model.fits:
        taken = fit.weights_bytes + fit.kv_tokens * fit.kv_bytes_per_token
        assert 0.8 * free[fit.device] < taken < 0.95 * free[fit.device]  # what is free changes


def test_a_gguf_is_read_without_being_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = examine(str(tiny_gguf.write_attention_model(tmp_path / "tiny.gguf"))).model
    assert model is not None
    assert model.kind == "llama"
    assert not (tmp_path / "cache").exists()


def test_text_and_json_say_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = str(tiny_models.save(tiny_models.gemma2(), tmp_path))
    capsys.readouterr()
    assert main(["doctor", "--model", source]) == 0
    text = capsys.readouterr().out
    assert main(["doctor", "--model", source, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["torch"] in text
    assert "attention varlen: it needs a CUDA device" in text or torch.cuda.is_available()
    assert f"KV {report['model']['fits'][0]['kv_bytes_per_token']} bytes a token" in text
    assert report["model"]["fits"][0]["refused"]["varlen"] in text
    assert set(report["packages"]) >= {"torchao", "llguidance", "prometheus_client"}


def test_without_a_model_the_machine_is_described() -> None:
    report = examine()
    assert report.model is None
    assert report.devices[-1].device == "cpu"
    assert report.devices[-1].attention["sdpa"] is None
    assert any(line.startswith("cpu: ") for line in lines(report))


def test_a_model_that_is_not_there_or_cannot_serve_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        examine(str(tmp_path))
    with pytest.raises(CannotRollBack):
        examine(str(tiny_models.save(tiny_models.mamba(), tmp_path / "mamba")))
