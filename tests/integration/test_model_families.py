"""Every family served: batched, ragged and rolled back, each text is transformers' own."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import tiny_models  # noqa: E402
from model_driver import QUALITIES, Device, run, truth  # noqa: E402
from transformers import BloomConfig  # noqa: E402

from cloud_verifier.hf_target import HFTarget  # noqa: E402
from cloud_verifier.loading import load_target  # noqa: E402
from cloud_verifier.rotary import longest_context  # noqa: E402
from cloud_verifier.target import Row  # noqa: E402
from draftwire.errors import InvalidRequest, ModelLoadFailed  # noqa: E402
from draftwire.types import ServingLimits  # noqa: E402

pytestmark = pytest.mark.models

# Passes of different sizes round differently, by some 1e-6 of the logits here.
MARGIN = 1e-4


@pytest.fixture(scope="module", params=sorted(tiny_models.SERVED))
def target(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HFTarget]:
    directory = tmp_path_factory.mktemp(request.param)
    tiny_models.save(tiny_models.SERVED[request.param](), directory)
    target = HFTarget.load(str(directory), kv_tokens=2048, threads=1)
    yield target
    target.close()


def devices_of(
    target: HFTarget, lengths: list[int], counts: list[int], drafts: list[int], margin: float
) -> list[Device]:
    """Devices with random prompts, of each quality in turn. No choice is closer than `margin`."""
    draw = random.Random(3)
    prompts = [[draw.randrange(tiny_models.VOCABULARY) for _ in range(n)] for n in lengths]
    devices = []
    for i, (text, gap) in enumerate(truth(target, prompts, counts)):
        assert gap > margin, f"the two best tokens lie {gap} apart: choose another seed"
        quality = QUALITIES[i % len(QUALITIES)]
        devices.append(Device(prompts[i], text, quality, drafts[i]))
    return devices


def test_texts_of_sessions_at_once_are_those_of_generate(target: HFTarget) -> None:
    devices = devices_of(
        target,
        lengths=[5, 37, 1, 18, 29, 3, 40, 11],
        counts=[24, 20, 21, 24, 18, 24, 20, 17],
        drafts=[4, 5, 3, 7, 1, 8, 2, 0],
        margin=MARGIN,
    )
    assert run(target, devices, max_batch_tokens=48) >= 4
    for device in devices:
        assert device.text == device.truth
    held = {device.quality: max(device.accepted) for device in devices[:4]}
    assert (held["right"], held["wrong in the middle"], held["right, but late"]) == (4, 2, 7)


def test_texts_go_to_the_end_of_the_context(target: HFTarget) -> None:
    end = target.card.limits.max_context
    devices = devices_of(
        target,
        lengths=[end - 9, 7, end - 20],
        counts=[9, 12, 20],
        drafts=[6, 3, 8],
        margin=MARGIN,
    )
    run(target, devices, max_batch_tokens=64)
    for device in devices:
        assert device.text == device.truth


def test_a_longrope_model_ends_where_its_frequencies_would_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = str(tiny_models.save(tiny_models.phi3_longrope(), tmp_path))
    loaded = load_target(directory)
    assert loaded.max_context == tiny_models.LONGROPE_SWITCH
    assert any("longrope" in message for message in caplog.messages)
    with pytest.raises(InvalidRequest, match="longrope"):
        HFTarget.load(directory, kv_tokens=512, max_context=tiny_models.LONGROPE_SWITCH + 1)


def test_one_text_beyond_that_would_change_another_s_scores(tmp_path: Path) -> None:
    directory = str(tiny_models.save(tiny_models.phi3_longrope(), tmp_path))
    target = HFTarget.load(directory, kv_tokens=512)
    row = Row(tokens=[3, 1, 4, 1, 5], start=0, blocks=[0], drafts=4)
    far = Row(tokens=[1], start=tiny_models.LONGROPE_SWITCH, blocks=range(1, 12))
    alone, beside = target.logits([row]), target.logits([row, far])[:5]
    assert float((alone - beside).abs().max()) > 0.1


def test_a_window_that_the_model_leaves_to_the_mask_is_refused(tmp_path: Path) -> None:
    loaded = load_target(str(tiny_models.save(tiny_models.qwen2_window(), tmp_path)))
    for layer in loaded.model.model.layers:
        layer.self_attn.sliding_window = None
    with pytest.raises(ModelLoadFailed, match="windows"):
        HFTarget(loaded, kv_tokens=64, limits=ServingLimits(max_context=64))


@pytest.mark.parametrize("family", ["llama-dynamic", "qwen3-moe"])
def test_attention_can_be_named_where_shapes_show_only_with_weights(
    tmp_path: Path, family: str
) -> None:
    directory = tiny_models.save(tiny_models.SERVED[family](), tmp_path)
    target = HFTarget.load(str(directory), kv_tokens=64, attention="sdpa")
    assert target.num_blocks > 0


def test_a_model_that_does_not_say_how_long_texts_may_be_is_refused() -> None:
    with pytest.raises(ModelLoadFailed, match="how long"):
        longest_context(BloomConfig(), "bloom")


# What passes of different sizes differ by in the logits, as a share of the largest.
SHARE = {"bfloat16": 2e-2, "float16": 3e-3}


@pytest.mark.parametrize("dtype", sorted(SHARE))
@pytest.mark.parametrize("family", ["gemma3", "llama", "mistral", "phi", "qwen3-moe"])
def test_half_precision_serves_the_text_that_generate_gives(
    tmp_path: Path, family: str, dtype: str
) -> None:
    directory = tiny_models.save(tiny_models.SERVED[family](), tmp_path)
    target = HFTarget.load(str(directory), kv_tokens=1024, threads=1, dtype=dtype)
    assert target.card.target.dtype == dtype
    tokens = list(range(60))
    blocks = [5, 2, 9, 4]
    target.verify([Row(tokens=tokens[:40], start=0, blocks=blocks, judge=False)])
    got = target.logits([Row(tokens=tokens[40:], start=40, blocks=blocks, drafts=19)])
    with target.plain() as plain, torch.inference_mode():
        want = plain(input_ids=torch.tensor([tokens]), logits_to_keep=20).logits[0]
    largest = float(want.abs().max())
    assert float((got - want).abs().max()) < SHARE[dtype] * largest

    draw = random.Random(1)
    prompts = [[draw.randrange(97) for _ in range(draw.randrange(1, 30))] for _ in range(32)]
    clear = [
        Device(prompt, text, QUALITIES[i % 4], 3)
        for i, (prompt, (text, margin)) in enumerate(
            zip(prompts, truth(target, prompts, [6] * len(prompts)), strict=True)
        )
        if margin > 2 * SHARE[dtype] * largest
    ]
    assert len(clear) >= 3
    run(target, clear, max_batch_tokens=48)
    assert [device.text for device in clear] == [device.truth for device in clear]
    target.close()
