"""Weight-only quantization: the quantized model is the target, and says so."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import tiny_models  # noqa: E402
from model_driver import QUALITIES, Device, run, truth  # noqa: E402

from cloud_verifier.hf_target import HFTarget  # noqa: E402
from cloud_verifier.loading import load_target  # noqa: E402
from draftwire.errors import (  # noqa: E402
    InvalidRequest,
    MissingDependency,
    ModelLoadFailed,
)

pytestmark = pytest.mark.models


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save(tiny_models.llama(), tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def target(directory: Path) -> Iterator[HFTarget]:
    pytest.importorskip("torchao")
    target = HFTarget.load(str(directory), kv_tokens=1024, threads=1, quantize="int8")
    yield target
    target.close()


def test_texts_are_those_of_generate_on_the_quantized_model(
    target: HFTarget, directory: Path
) -> None:
    prompts = [[5, 60, 7], list(range(40)), [9] * 12, [80, 3, 3, 1]]
    devices = []
    for i, (text, margin) in enumerate(truth(target, prompts, [24, 20, 16, 22])):
        assert margin > 1e-4
        devices.append(Device(prompts[i], text, QUALITIES[i], 4))
    run(target, devices, max_batch_tokens=32)
    assert [device.text for device in devices] == [device.truth for device in devices]
    plain = HFTarget.load(str(directory), kv_tokens=1024, threads=1)
    differ = [text for text, _ in truth(plain, prompts, [24, 20, 16, 22])]
    assert differ != [device.truth for device in devices]  # so it was quantized


def test_the_identity_states_it(target: HFTarget, directory: Path) -> None:
    identity = target.card.target
    assert identity.dtype == "float32+int8"
    plain = load_target(str(directory)).identity
    again = load_target(str(directory), quantize="int8").identity
    half = load_target(str(directory), quantize="int8", dtype="bfloat16").identity
    assert again.digest == identity.digest
    assert len({plain.digest, identity.digest, half.digest}) == 3
    assert half.dtype == "bfloat16+int8"
    assert plain.vocabulary_fingerprint == identity.vocabulary_fingerprint


def test_linear_layers_shrink_and_the_log_says_by_how_much(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("torchao")
    with caplog.at_level(logging.INFO):
        model = load_target(str(directory), quantize="int8").model
    assert any("quantized 21 linear layers" in message for message in caplog.messages)
    attention = model.model.layers[0].self_attn.q_proj.weight
    assert type(attention).__name__ == "Int8Tensor"
    for kept in (model.lm_head.weight, model.model.embed_tokens.weight):
        assert type(kept.data) is torch.Tensor


def test_int4_on_a_cpu_is_refused_by_name(directory: Path) -> None:
    with pytest.raises(InvalidRequest, match="int4 weights need a CUDA device"):
        load_target(str(directory), quantize="int4", device="cpu")


def test_a_kind_that_is_none_is_refused(directory: Path) -> None:
    with pytest.raises(InvalidRequest, match="int3"):
        load_target(str(directory), quantize="int3")


def test_without_torchao_its_extra_is_named(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    with pytest.raises(MissingDependency, match="quantize"):
        load_target(str(directory), quantize="int8")


def test_models_whose_weights_would_stay_large_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("torchao")
    directory = tiny_models.save(tiny_models.mixtral(), tmp_path)
    with pytest.raises(ModelLoadFailed, match="experts"):
        load_target(str(directory), quantize="int8")


@pytest.mark.gpu
def test_int4_serves_on_a_gpu(tmp_path: Path) -> None:
    pytest.importorskip("torchao")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    config = tiny_models.llama()
    config.hidden_size, config.intermediate_size, config.head_dim = 128, 256, 32
    directory = tiny_models.save(config, tmp_path)
    options = {"dtype": "bfloat16", "device": "cuda", "quantize": "int4"}
    target = HFTarget.load(str(directory), kv_tokens=256, **options)
    assert target.card.target.dtype == "bfloat16+int4"
    target.close()
