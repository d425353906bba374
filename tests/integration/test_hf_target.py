"""The transformers target: what it loads, what it refuses, and that its tokens are its own."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import tiny_gguf  # noqa: E402
import tiny_models  # noqa: E402

from cloud_verifier import gguf_conversion  # noqa: E402
from cloud_verifier.hf_target import HFTarget  # noqa: E402
from cloud_verifier.loading import load_target, load_tokenizer  # noqa: E402
from cloud_verifier.model_source import locate  # noqa: E402
from cloud_verifier.target import Judgement, Row  # noqa: E402
from draftwire.errors import (  # noqa: E402
    CannotRollBack,
    InternalError,
    InvalidRequest,
    MissingDependency,
    ModelLoadFailed,
    ModelNotFound,
)
from draftwire.testing.demo import demo_model_path  # noqa: E402
from draftwire.types import SamplingParams  # noqa: E402
from edge_client.verifier_process import VerifierProcess  # noqa: E402

pytestmark = pytest.mark.models

PROMPTS = ["What is the capital of France?", "Write two sentences about the sea.", "Count to ten."]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A conversion cache of this test's own; its path once something is converted."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "draftwire" / "converted"


@pytest.fixture(scope="module")
def llama_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save(tiny_models.llama(), tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def smollm() -> Iterator[HFTarget]:
    target = HFTarget.load(str(demo_model_path()), kv_tokens=2048, threads=1)
    yield target
    target.close()


def prompt_tokens(text: str) -> list[int]:
    tokenizer = load_tokenizer(locate(str(demo_model_path()), report=lambda _: None).directory)
    chat = [{"role": "user", "content": text}]
    ids: list[int] = tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
    return ids


def decode(target: HFTarget, prompt: list[int], blocks: list[int], count: int) -> list[int]:
    """Greedy tokens, one a pass."""
    out: list[int] = []
    feed, start = prompt, 0
    while len(out) < count and not (out and out[-1] in target.card.target.eos_token_ids):
        (judgement,) = target.verify([Row(tokens=feed, start=start, blocks=blocks)])
        assert judgement is not None
        start += len(feed)
        out.append(judgement.token)
        feed = [judgement.token]
    return out


# ------------------------------------------------------------------ the demo model


@pytest.mark.slow
@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_decode_equals_generate(smollm: HFTarget, prompt: str) -> None:
    ids = prompt_tokens(prompt)
    got = decode(smollm, ids, list(range(11, 40)), 24)
    with smollm.plain() as model, torch.inference_mode():
        ids_tensor = torch.tensor([ids])
        whole = model.generate(
            ids_tensor,
            attention_mask=torch.ones_like(ids_tensor),
            max_new_tokens=len(got),
            do_sample=False,
        )
    assert got == whole[0, len(ids) :].tolist()


@pytest.mark.slow
def test_rows_of_a_shared_pass_judge_as_alone(smollm: HFTarget) -> None:
    prompts = [prompt_tokens(text) for text in PROMPTS]
    tables = [list(range(40 * i, 40 * i + 40))[::-1] for i in range(len(prompts))]
    own = [decode(smollm, p, t, 9) for p, t in zip(prompts, tables, strict=True)]
    rows, expected = [], []
    for i, (prompt, table, tokens) in enumerate(zip(prompts, tables, own, strict=True)):
        drafts = tokens[:-1]
        accepted = min(2 * i + 1, len(drafts) - 1)
        drafts[accepted] = (drafts[accepted] + 1) % 49152
        feed = [prompt[-1], *drafts]
        start = len(prompt) - 1
        rows.append(Row(tokens=feed, start=start, blocks=table, drafts=len(drafts)))
        expected.append(Judgement(accepted, tokens[accepted]))
    assert smollm.verify(rows) == expected


@pytest.mark.slow
def test_sampled_drafts_of_the_target_s_own_choice_are_all_accepted(smollm: HFTarget) -> None:
    prompt = prompt_tokens(PROMPTS[1])
    blocks = list(range(20))
    sampling = SamplingParams(temperature=0.8, top_p=0.95, seed=7)
    tokens: list[int] = []
    feed, start = prompt, 0
    for _ in range(6):
        row = Row(tokens=feed, start=start, blocks=blocks, sampling=sampling)
        (judgement,) = smollm.verify([row])
        assert judgement is not None
        start += len(feed)
        tokens.append(judgement.token)
        feed = [judgement.token]
    again = Row(
        tokens=[prompt[-1], *tokens[:-1]],
        start=len(prompt) - 1,
        blocks=blocks,
        drafts=5,
        sampling=sampling,
    )
    assert smollm.verify([again]) == [Judgement(5, tokens[-1])]


def test_the_card_describes_the_demo_model(smollm: HFTarget) -> None:
    card = smollm.card
    assert card.target.model == "SmolLM2-135M-Instruct.Q4_1"
    assert card.target.dtype == "float32"
    assert card.target.eos_token_ids == (2,)
    assert len(card.target.digest) == 16
    assert card.vocabulary_size == 49152
    assert card.limits.max_context == 2048  # the model goes to 8192, the KV does not
    assert card.limits.max_rows == 33


def test_the_draft_of_the_same_file_has_the_same_vocabulary(smollm: HFTarget) -> None:
    pytest.importorskip("llama_cpp")
    from edge_client.drafters.llama_model import LlamaModel
    from edge_client.drafters.llama_tokenizer import LlamaTokenizer

    model = LlamaModel.load(demo_model_path())
    draft = LlamaTokenizer(model, None)
    assert draft.fingerprint == smollm.card.target.vocabulary_fingerprint
    model.close()


# ------------------------------------------------------------------ loading


def test_identity_depends_on_weights_and_dtype_only(llama_directory: Path, tmp_path: Path) -> None:
    first = load_target(str(llama_directory)).identity
    copy = tmp_path / "elsewhere"
    shutil.copytree(llama_directory, copy)
    assert load_target(str(copy)).identity.digest == first.digest
    half = load_target(str(llama_directory), dtype="bfloat16").identity
    other = load_target(str(tiny_models.save(tiny_models.llama(), tmp_path / "other", seed=1)))
    assert len({first.digest, half.digest, other.identity.digest}) == 3
    assert other.identity.vocabulary_fingerprint == first.vocabulary_fingerprint
    assert half.dtype == "bfloat16"


def test_eos_may_be_one_id_or_several(llama_directory: Path) -> None:
    assert load_target(str(llama_directory)).identity.eos_token_ids == (2, 5)


def test_kv_memory_is_allocated_up_front_and_freed_by_close(llama_directory: Path) -> None:
    target = HFTarget.load(str(llama_directory), kv_tokens=100)
    assert (target.block_size, target.num_blocks) == (16, 7)
    assert target.kv_bytes == 7 * 16 * 3 * 2 * (2 * 8) * 4  # layers, K and V, heads · size, float32
    assert target.card.limits.max_context == 100
    target.close()
    assert target.kv_bytes == 0
    with pytest.raises(InternalError, match="closed"):
        target.verify([Row(tokens=[1], start=0, blocks=[0])])


def test_bfloat16_targets_serve(llama_directory: Path) -> None:
    target = HFTarget.load(str(llama_directory), kv_tokens=64, dtype="bfloat16")
    (judgement,) = target.verify([Row(tokens=[1, 2, 3], start=0, blocks=[1], drafts=1)])
    assert judgement is not None


def test_warming_up_runs_within_what_there_is_and_changes_no_result(llama_directory: Path) -> None:
    for kv_tokens in (16, 512):
        target = HFTarget.load(str(llama_directory), kv_tokens=kv_tokens)
        row = Row(tokens=[1, 2, 3], start=0, blocks=[0], drafts=2)
        before = target.logits([row])
        target.warm_up(max_batch_tokens=64)
        assert torch.equal(target.logits([row]), before)


def test_a_verifier_is_ready_only_when_it_is_warm(llama_directory: Path) -> None:
    said: list[str] = []
    serve = ["--model", str(llama_directory), "--kv-tokens", "64", "--log-level", "debug"]
    with VerifierProcess(serve, progress=said.append) as verifier:  # until its ready line
        assert verifier.address
    assert any("loading" in line and "MB" in line for line in said)
    assert sum("warm-up" in line for line in said) == 3


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dtype": "float7"}, "float7"),
        ({"device": "abacus"}, "abacus"),
        ({"max_context": 257}, "256"),
        ({"max_context": 200, "kv_tokens": 100}, "100"),
        ({"kv_tokens": 1}, "kv_tokens"),
        ({"threads": 0}, "threads"),
    ],
)
def test_a_setting_that_cannot_be_honoured_is_refused(
    llama_directory: Path, changes: dict[str, object], reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        HFTarget.load(str(llama_directory), **{"kv_tokens": 512, **changes})


@pytest.mark.parametrize("source", ["/no/such/directory", "missing.gguf", "no such model", ""])
def test_a_source_that_is_not_there_is_not_found(source: str) -> None:
    with pytest.raises(ModelNotFound):
        load_target(source)


def test_a_hub_id_that_cannot_be_fetched_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelNotFound, match="hub can't be reached"):
        load_target("draftwire-tests/no-such-model")


def test_an_empty_directory_has_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadFailed, match="configuration"):
        load_target(str(tmp_path))


def test_weights_other_than_safetensors_are_refused(llama_directory: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model"
    shutil.copytree(llama_directory, copy)
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
    with pytest.raises(ModelLoadFailed, match="safetensors"):
        load_target(str(copy))


def test_truncated_weights_fail_to_load(llama_directory: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model"
    shutil.copytree(llama_directory, copy)
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelLoadFailed, match="can't be loaded"):
        load_target(str(copy))


def test_recurrent_models_are_refused_at_load(tmp_path: Path) -> None:
    directory = tiny_models.save(tiny_models.mamba(), tmp_path)
    with pytest.raises(CannotRollBack, match="mamba"):
        HFTarget.load(str(directory), kv_tokens=64)


# ------------------------------------------------------------------ GGUF conversion


def test_a_gguf_is_converted_once(cache: Path, tmp_path: Path) -> None:
    path = tiny_gguf.write_attention_model(tmp_path / "tiny.gguf")
    said: list[str] = []
    first = HFTarget.load(str(path), kv_tokens=32, progress=said.append)
    assert any("dequantizing" in line for line in said)
    (entry,) = cache.iterdir()
    written = {file: file.stat().st_mtime_ns for file in entry.iterdir()}
    said.clear()
    moved = path.rename(tmp_path / "renamed.gguf")
    again = HFTarget.load(str(moved), kv_tokens=32, progress=said.append)
    assert not any("converting" in line for line in said)
    assert {file: file.stat().st_mtime_ns for file in entry.iterdir()} == written
    assert again.card.target.digest == first.card.target.digest
    assert (first.card.target.model, again.card.target.model) == ("tiny", "renamed")
    assert first.card.target.eos_token_ids == (257,)


def test_an_interrupted_conversion_is_redone(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_gguf.write_attention_model(tmp_path / "tiny.gguf")

    def interrupt(message: str) -> None:
        if "writing" in message:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gguf_conversion.convert(path, progress=interrupt)
    assert list(cache.iterdir()) == []
    # What a killed process leaves, long ago and just now, and an entry cut short by hand.
    stale, fresh = cache / ".partial-stale", cache / ".partial-fresh"
    stale.mkdir()
    fresh.mkdir()
    monkeypatch.setattr(
        gguf_conversion.time, "time", lambda: stale.stat().st_mtime + gguf_conversion._STALE_S / 2
    )
    entry = gguf_conversion.convert(path, progress=lambda _: None)
    assert fresh.exists()
    monkeypatch.setattr(
        gguf_conversion.time, "time", lambda: stale.stat().st_mtime + gguf_conversion._STALE_S * 2
    )
    whole = (entry / "model.safetensors").read_bytes()
    (entry / "model.safetensors").write_bytes(whole[:-1])
    assert gguf_conversion.convert(path, progress=lambda _: None) == entry
    assert (entry / "model.safetensors").read_bytes() == whole
    assert not stale.exists()


def test_a_file_that_is_no_gguf_fails_to_load(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"<html>not found</html>")
    with pytest.raises(ModelLoadFailed, match="not a GGUF"):
        load_target(str(path))
    assert not cache.exists()


def test_a_truncated_gguf_fails_to_load(cache: Path, tmp_path: Path) -> None:
    path = tiny_gguf.write_attention_model(tmp_path / "tiny.gguf")
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ModelLoadFailed, match="can't be converted"):
        load_target(str(path))
    assert list(cache.iterdir()) == []


def test_a_recurrent_gguf_is_refused_before_it_is_converted(cache: Path, tmp_path: Path) -> None:
    path = tiny_gguf.write_recurrent_model(tmp_path / "tiny.gguf")
    with pytest.raises(CannotRollBack, match="mamba"):
        load_target(str(path))
    assert list(cache.iterdir()) == []


def test_conversion_names_a_package_that_is_missing(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_gguf.write_attention_model(tmp_path / "tiny.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingDependency, match="gguf"):
        load_target(str(path))
    assert not cache.exists()


def test_a_cache_that_cannot_be_written_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_gguf.write_attention_model(tmp_path / "tiny.gguf")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelLoadFailed, match="XDG_CACHE_HOME"):
        load_target(str(path))
