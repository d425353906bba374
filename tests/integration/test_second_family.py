"""Gemma 3 270M as target and draft: sliding windows, a large vocabulary, another tokenizer.

See `gemma_model` on where the weights come from and on their terms.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("llama_cpp")

import gemma_model  # noqa: E402
from model_driver import Device, run, truth  # noqa: E402

from cloud_verifier.hf_target import HFTarget  # noqa: E402
from cloud_verifier.target import Row  # noqa: E402
from edge_client.client import AsyncEdgeClient  # noqa: E402
from edge_client.drafters.llama import LlamaDrafter, LlamaModel  # noqa: E402
from edge_client.verifier_process import VerifierProcess  # noqa: E402

pytestmark = [pytest.mark.models, pytest.mark.slow, pytest.mark.download]

STORY = "The lighthouse keeper counted the ships as they passed in the night. "
COUNT = 40
# Passes of different sizes differ by less than this in the logits, which reach some 30.
ROUNDING = 1e-3


@pytest.fixture(scope="module")
def path() -> Path:
    try:
        return gemma_model.gemma_path()
    except gemma_model.Unreachable as error:
        if gemma_model.must_be_there():
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def target(path: Path) -> Iterator[HFTarget]:
    target = HFTarget.load(str(path), kv_tokens=2048, threads=1)
    yield target
    target.close()


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[LlamaModel]:
    loaded = LlamaModel.load(path)
    yield loaded
    loaded.close()


def test_ragged_verify_rows_beyond_the_window_equal_separate_forwards(
    target: HFTarget, model: LlamaModel
) -> None:
    with target.plain() as plain:
        assert plain.config.sliding_window == 512
        assert set(plain.config.layer_types) == {"sliding_attention", "full_attention"}
    long = model.tokenizer.encode(STORY * 60)
    rows, wanted, block = [], [], 0
    for length, drafts in ((700, 7), (530, 4), (40, 0), (515, 2)):
        tokens = long[:length]
        blocks = range(block, block := block + -(-length // target.block_size))
        start = length - drafts - 1
        target.verify([Row(tokens=tokens[:start], start=0, blocks=blocks, judge=False)])
        rows.append(Row(tokens=tokens[start:], start=start, blocks=blocks, drafts=drafts))
        with target.plain() as plain, torch.inference_mode():
            ids = torch.tensor([tokens])
            wanted.append(plain(input_ids=ids, logits_to_keep=drafts + 1).logits[0])
    assert float((target.logits(rows) - torch.cat(wanted)).abs().max()) < ROUNDING


def test_texts_of_sessions_at_once_are_those_of_generate(
    target: HFTarget, model: LlamaModel
) -> None:
    texts = [STORY * 40, "Once upon a time", "Water boils at"]
    prompts = [model.tokenizer.encode(text) for text in texts]
    assert len(prompts[0]) > 512
    devices = []
    for prompt, drafts, quality, (text, margin) in zip(
        prompts,
        (5, 4, 3),
        ("right", "wrong in the middle", "random"),
        truth(target, prompts, [16, 16, 16]),
        strict=True,
    ):
        assert margin > ROUNDING
        devices.append(Device(prompt, text, quality, drafts))
    run(target, devices, max_batch_tokens=256)
    for device in devices:
        assert device.text == device.truth


def test_a_device_that_drafts_with_the_same_file_gets_the_target_s_own_text(
    path: Path, target: HFTarget, model: LlamaModel
) -> None:
    prompt = model.tokenizer.encode("The first thing to know about the sea is")
    [(text, margin)] = truth(target, [prompt], [COUNT])
    assert margin > ROUNDING

    async def generate(address: str) -> tuple[list[int], int]:
        drafter = LlamaDrafter(model, threads=1, context=256)
        async with AsyncEdgeClient(address, model.tokenizer, [drafter]) as client:
            stream = client.generate(prompt, max_tokens=COUNT, num_draft_tokens=4, ignore_eos=True)
            await stream.read()
            return list(stream.summary.token_ids), stream.summary.accepted

    serve = ["--model", str(path), "--threads", "1", "--kv-tokens", "512"]
    with VerifierProcess(serve) as verifier:
        tokens, accepted = asyncio.run(generate(verifier.address))
    assert tokens == text
    assert accepted > COUNT / 4
