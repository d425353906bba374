"""The tokenizer beside an ONNX model: the same tokens as llama.cpp makes of the same model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

from cloud_verifier.gguf_conversion import convert
from draftwire.errors import InvalidRequest, ModelLoadFailed
from draftwire.testing.demo import demo_model_path
from edge_client.drafter import Tokenizer
from edge_client.drafters.llama import LlamaModel
from edge_client.drafters.onnx_tokenizer import OnnxTokenizer

pytestmark = pytest.mark.models


@pytest.fixture(scope="module")
def directory() -> Path:
    return convert(demo_model_path(), progress=lambda _: None)


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Tokenizer:
    return OnnxTokenizer(directory, "demo")


@pytest.fixture(scope="module")
def reference() -> Iterator[Tokenizer]:
    model = LlamaModel.load(demo_model_path())
    yield model.tokenizer
    model.close()


@pytest.mark.parametrize(
    "text",
    ["", " leading  spaces\n\n\ttab", "👩‍👩‍👧‍👦 é 日本語", "<|im_start|>user\nspecials<|im_end|>"],
)
def test_text_has_the_same_tokens(tokenizer: Tokenizer, reference: Tokenizer, text: str) -> None:
    assert tokenizer.encode(text) == reference.encode(text)


@pytest.mark.parametrize(
    "messages",
    [
        [("user", "What is the capital of France?")],
        [("system", "Be brief."), ("user", "Hi  there\n"), ("assistant", "Yes?"), ("user", "🚀")],
    ],
    ids=["one", "several"],
)
def test_a_conversation_has_the_same_tokens(
    tokenizer: Tokenizer, reference: Tokenizer, messages: list[tuple[str, str]]
) -> None:
    conversation = [{"role": role, "content": content} for role, content in messages]
    assert tokenizer.encode_chat(conversation) == reference.encode_chat(conversation)


def test_tokens_have_the_same_text_and_the_vocabulary_the_same_fingerprint(
    tokenizer: Tokenizer, reference: Tokenizer
) -> None:
    assert tokenizer.fingerprint == reference.fingerprint
    assert tokenizer.eos_token_ids <= reference.eos_token_ids
    assert all(tokenizer.piece(token) == reference.piece(token) for token in range(49152))


def test_what_cant_be_said_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="vocabulary"):
        tokenizer.piece(49152)
    with pytest.raises(InvalidRequest, match="Unicode"):
        tokenizer.encode("\ud800")
    with pytest.raises(InvalidRequest, match="role and content"):
        tokenizer.encode_chat([{"role": "user"}])


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (None, "has no chat template"),
        ("{% broken", "does not parse"),
        ("{{ raise_exception('no system role') }}", "no system role"),
        ("{{ messages.__class__.__mro__ }}{{ messages.append(1) }}", "can't render"),
    ],
    ids=["none", "broken", "refuses", "escapes"],
)
def test_a_chat_template_that_cant_be_used_says_why(
    directory: Path, tmp_path: Path, template: str | None, said: str
) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((directory / name).read_bytes())
    if template is not None:
        (tmp_path / "chat_template.jinja").write_text(template)
    with pytest.raises(InvalidRequest, match=said):
        OnnxTokenizer(tmp_path, "t").encode_chat([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_broken_files_are_named(directory: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_bytes((directory / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(text)
    with pytest.raises(ModelLoadFailed, match=r"tokenizer_config\.json"):
        OnnxTokenizer(tmp_path, "t")
