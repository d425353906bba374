"""Drafting with ONNX Runtime: the source's own tokens, rollbacks, both kinds of cache, refusals."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

import tiny_models  # noqa: E402
import tiny_onnx  # noqa: E402
import torch  # noqa: E402
from llama_drafting import same, text_of  # noqa: E402
from transformers import PreTrainedModel  # noqa: E402

from draftwire.errors import InternalError, InvalidRequest, ModelLoadFailed  # noqa: E402
from draftwire.types import SamplingParams, Tokens  # noqa: E402
from edge_client.draft_model import drafter_of, load_model  # noqa: E402
from edge_client.drafter import Proposal  # noqa: E402
from edge_client.drafters.onnx import OnnxDrafter, OnnxModel  # noqa: E402

pytestmark = [
    pytest.mark.models,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, seed=11)
CONTEXT = 200


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PreTrainedModel]:
    """Sliding windows in some layers, all of the text in others."""
    directory = tmp_path_factory.mktemp("gemma3")
    return directory, tiny_onnx.write_model(tiny_models.gemma3(), directory)


@pytest.fixture(scope="module")
def growing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("growing")
    tiny_onnx.write_growing(directory)
    return directory


@pytest.fixture(params=["in place", "growing"])
def model(
    request: pytest.FixtureRequest, exported: tuple[Path, PreTrainedModel], growing: Path
) -> Iterator[OnnxModel]:
    loaded = OnnxModel.load(exported[0] if request.param == "in place" else growing, threads=1)
    assert loaded.in_place == (request.param == "in place")
    yield loaded
    loaded.close()


async def fresh(model: OnnxModel, sampling: SamplingParams, context: Tokens) -> Proposal:
    drafter = OnnxDrafter(model, context=CONTEXT, batch=7)
    await drafter.begin(sampling, context)
    proposal = await drafter.draft(0, context)
    await drafter.close()
    assert proposal is not None
    return proposal


def test_an_exported_model_drafts_the_sources_own_text(
    exported: tuple[Path, PreTrainedModel],
) -> None:
    directory, source = exported
    loaded = load_model(directory, threads=1)

    async def drafted(prompt: list[int]) -> list[int]:
        drafter = drafter_of(loaded, context=CONTEXT)
        tokens = await text_of(drafter, prompt, 24)
        await drafter.close()
        return tokens

    rng = random.Random(1)
    for length in range(1, 21):
        prompt = [rng.randrange(tiny_models.VOCABULARY) for _ in range(length)]
        with torch.inference_mode():
            expected = source.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, length),
                max_new_tokens=24,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
        assert asyncio.run(drafted(prompt)) == expected[0, length:].tolist()
    loaded.close()


@pytest.mark.parametrize("sampling", [SamplingParams(), SAMPLED], ids=["greedy", "sampled"])
def test_after_any_rollbacks_a_draft_is_a_fresh_contexts(
    model: OnnxModel, sampling: SamplingParams
) -> None:
    async def scenario() -> None:
        rng = random.Random(5)
        context = [1, 2, 3, 4]
        drafter = OnnxDrafter(model, context=CONTEXT, batch=16)
        assert await drafter.begin(sampling, context) == 0
        first = await drafter.draft(0, context)
        assert first is not None
        context.append(first.token)
        for _ in range(40):
            keep = len(context) if rng.random() < 0.5 else rng.randint(1, len(context))
            keep = min(keep, 70)
            count = rng.choice([0, 0, 1, 4, 20])
            added = [rng.randrange(tiny_models.VOCABULARY) for _ in range(count)]
            context[keep:] = added
            given = await drafter.draft(keep, added)
            assert given is not None
            assert same(given, await fresh(model, sampling, context))
            context.append(given.token)
        await drafter.close()

    asyncio.run(scenario())


def test_a_cancelled_draft_loses_nothing_but_its_proposal(model: OnnxModel) -> None:
    async def scenario() -> None:
        context = [1, 2, 3]
        drafter = OnnxDrafter(model, context=CONTEXT, batch=4)
        await drafter.draft(0, context)
        call = asyncio.create_task(drafter.draft(2, [9] * 30))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
        given = await drafter.draft(32, [5])
        assert given is not None
        assert same(given, await fresh(model, SamplingParams(), [1, 2, *[9] * 30, 5]))
        await drafter.close()

    asyncio.run(scenario())


def test_limits_and_misuse_are_errors_and_harm_nothing(model: OnnxModel) -> None:
    async def scenario() -> None:
        drafter = OnnxDrafter(model, context=8)
        first = await drafter.draft(0, [1, 2])
        for keep, tokens in ((0, [1] * 8), (9, []), (2, [tiny_models.VOCABULARY]), (0, [])):
            with pytest.raises(InvalidRequest):
                await drafter.draft(keep, tokens)
        again = await drafter.draft(2, [])
        assert first is not None
        assert again is not None
        assert same(again, first)
        await drafter.close()
        await drafter.close()
        with pytest.raises(InternalError):
            await drafter.draft(0, [1])

    asyncio.run(scenario())


def test_the_model_outlives_its_closing_while_a_drafter_needs_it(growing: Path) -> None:
    async def scenario() -> None:
        loaded = OnnxModel.load(growing)
        drafter = OnnxDrafter(loaded)
        loaded.close()
        assert await drafter.draft(0, [1]) is not None
        await drafter.close()
        with pytest.raises(InternalError, match="closed"):
            OnnxDrafter(loaded)

    asyncio.run(scenario())


def test_who_runs_it_is_chosen_and_reported(growing: Path, tmp_path: Path) -> None:
    assert OnnxModel.load(growing).providers == ("CPUExecutionProvider",)
    with pytest.raises(InvalidRequest, match="NoSuchProvider"):
        OnnxModel.load(growing, providers=["NoSuchProvider"])
    (tmp_path / "draft.gguf").touch()
    with pytest.raises(InvalidRequest, match="providers"):
        load_model(tmp_path / "draft.gguf", providers=["CPUExecutionProvider"])


def test_what_cant_draft_is_refused_with_its_reason(growing: Path, tmp_path: Path) -> None:
    graph = onnx.load(growing / "model.onnx")
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    with pytest.raises(ModelLoadFailed, match="can't be loaded"):
        OnnxModel.load(broken)
    with pytest.raises(ModelLoadFailed, match="there is no"):
        load_model(tmp_path / "missing.onnx")
    tiny_onnx.write_tokenizer(tmp_path)
    del graph.graph.output[1:]
    onnx.save(graph, broken)
    with pytest.raises(ModelLoadFailed, match=r"no \['present.0.key'"):
        load_model(tmp_path)
    onnx.save(graph, tmp_path / "second.onnx")
    with pytest.raises(ModelLoadFailed, match=r"2 models: broken.onnx, second.onnx"):
        load_model(tmp_path)


def test_a_model_without_its_tokenizer_is_refused(growing: Path, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes((growing / "model.onnx").read_bytes())
    with pytest.raises(ModelLoadFailed, match=r"no tokenizer\.json"):
        load_model(tmp_path)
