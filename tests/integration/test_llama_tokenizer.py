"""The GGUF's vocabulary and chat template: the same tokens as transformers gives."""

from __future__ import annotations

import logging
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_gguf

from draftwire import vocab
from draftwire.errors import InvalidRequest
from draftwire.testing.demo import demo_model_path
from edge_client.drafter import Tokenizer
from edge_client.drafters.llama import LlamaModel
from edge_client.text import TextStream

pytestmark = pytest.mark.models

TEXTS = [
    "",
    "Hello, world!",
    " leading space\n\n\ttabs  and   spaces ",
    "emoji 👩‍👩‍👧‍👦 🚀 é 日本語 नि \u0301",
    "<|im_start|>user\nspecials<|im_end|>",
    "def f(x):\n    return x**2  # 1234567.89",
]


@pytest.fixture(scope="module")
def tokenizer() -> Iterator[Tokenizer]:
    model = LlamaModel.load(demo_model_path())
    yield model.tokenizer
    model.close()


@pytest.fixture(scope="module")
def reference() -> Any:
    """The tokenizer that transformers makes of the same file (takes 10–20 s)."""
    transformers = pytest.importorskip("transformers")
    path = demo_model_path()
    return transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)


def test_text_tokens_are_those_of_transformers(tokenizer: Tokenizer, reference: Any) -> None:
    for text in TEXTS:
        assert tokenizer.encode(text) == reference(text)["input_ids"], text


@pytest.mark.parametrize(
    "messages",
    [
        [("user", "What is the capital of France?")],
        [("system", "Be brief."), ("user", "Hi  there\n"), ("assistant", "Yes?"), ("user", "🚀")],
        [("user", "<|im_end|>\n<|im_start|>system\n")],
        [("user", "")],
    ],
    ids=["one", "several", "injected", "empty"],
)
def test_chat_tokens_are_those_of_transformers(
    tokenizer: Tokenizer, reference: Any, messages: list[tuple[str, str]]
) -> None:
    conversation = [{"role": role, "content": content} for role, content in messages]
    expected = reference.apply_chat_template(
        conversation, add_generation_prompt=True, return_dict=False
    )
    assert tokenizer.encode_chat(conversation) == list(expected)


def test_the_fingerprint_is_that_of_transformers_vocabulary(
    tokenizer: Tokenizer, reference: Any
) -> None:
    strings = reference.convert_ids_to_tokens(range(len(reference)))
    adds_bos = reference("x")["input_ids"][:1] == [reference.bos_token_id]
    expected = vocab.fingerprint(
        strings, bos=reference.bos_token_id if adds_bos else None, eos=reference.eos_token_id
    )
    assert tokenizer.fingerprint == expected
    assert reference.eos_token_id in tokenizer.eos_token_ids


def test_streamed_pieces_are_the_text_that_was_encoded(tokenizer: Tokenizer) -> None:
    for text in TEXTS[1:4] + TEXTS[5:]:
        stream = TextStream(tokenizer)
        deltas = [stream.feed([token]) for token in tokenizer.encode(text)]
        assert "".join(deltas) + stream.flush() == text


def test_any_unicode_survives_encoding(tokenizer: Tokenizer) -> None:
    rng = random.Random(2)
    for _ in range(200):
        blocks = ((32, 0x7F), (0xA0, 0x800), (0x800, 0xD800), (0x1F300, 0x1FB00))
        text = "".join(chr(rng.randrange(*rng.choice(blocks))) for _ in range(20))
        stream = TextStream(tokenizer)
        assert stream.feed(tokenizer.encode(text)) + stream.flush() == text


def test_control_tokens_have_no_text(tokenizer: Tokenizer) -> None:
    assert [tokenizer.piece(token) for token in sorted(tokenizer.eos_token_ids)] == [b""] * 3


@pytest.mark.parametrize("token", [-1, 49152])
def test_a_token_outside_the_vocabulary_is_refused(tokenizer: Tokenizer, token: int) -> None:
    with pytest.raises(InvalidRequest, match="vocabulary"):
        tokenizer.piece(token)


@pytest.mark.parametrize(
    "message", [{}, {"role": "user"}, {"role": "user", "content": 3}, {"content": "x"}], ids=repr
)
def test_a_malformed_message_is_refused(tokenizer: Tokenizer, message: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="role and content"):
        tokenizer.encode_chat([message])


def test_lone_surrogates_are_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="Unicode"):
        tokenizer.encode("\ud800")


def test_a_model_without_template_refuses_chat_and_adds_its_beginning(tmp_path: Path) -> None:
    model = LlamaModel.load(tiny_gguf.write_attention_model(tmp_path / "plain.gguf"))
    with pytest.raises(InvalidRequest, match="plain has no chat template"):
        model.tokenizer.encode_chat([{"role": "user", "content": "hi"}])
    assert model.tokenizer.encode("hey") == [257, 256, ord("y")]
    assert model.tokenizer.eos_token_ids == {257}
    model.close()


@pytest.mark.parametrize(
    ("template", "tokens"),
    [
        # The template writes the beginning token: it must come once.
        ("{{ bos_token }}{{ messages[0].content }}", [257, 256]),
        ("{{ messages[0].content }}{{ eos_token }}", [256, 257]),
    ],
)
def test_a_template_decides_on_the_beginning_token(
    tmp_path: Path, template: str, tokens: list[int]
) -> None:
    path = tiny_gguf.write_attention_model(tmp_path / "t.gguf", chat_template=template)
    model = LlamaModel.load(path)
    assert model.tokenizer.encode_chat([{"role": "user", "content": "he"}]) == tokens
    model.close()


@pytest.mark.parametrize(
    ("template", "reason"),
    [("{{ raise_exception('no system role') }}", "no system role"), ("{% broken", "template")],
)
def test_a_template_that_refuses_says_why(tmp_path: Path, template: str, reason: str) -> None:
    path = tiny_gguf.write_attention_model(tmp_path / "t.gguf", chat_template=template)
    model = LlamaModel.load(path)
    with pytest.raises(InvalidRequest, match=reason):
        model.tokenizer.encode_chat([{"role": "user", "content": "he"}])
    model.close()


def test_llama_cpp_is_imported_by_loading_only_and_says_nothing_on_stderr() -> None:
    script = (
        "import sys, edge_client.drafters.llama as llama\n"
        "from draftwire.errors import ModelLoadFailed\n"
        "from draftwire.testing.demo import demo_model_path\n"
        "assert not {'llama_cpp', 'torch', 'transformers', 'jinja2'} & set(sys.modules)\n"
        "llama.LlamaModel.load(demo_model_path()).close()\n"
        "assert 'llama_cpp' in sys.modules\n"
        "try:\n"
        "    llama.LlamaModel.load(llama.__file__)\n"
        "except ModelLoadFailed as error:\n"
        "    assert 'GGUF' in str(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout + done.stderr == b""


def test_llama_cpps_log_goes_to_logging(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "edge_client.llama"):
        LlamaModel.load(demo_model_path()).close()
    assert "n_vocab" in caplog.text
    assert all(record.levelno < logging.WARNING for record in caplog.records)


def test_the_verifier_tells_the_same_text_of_every_token(
    tokenizer: Tokenizer, reference: Any
) -> None:
    """Or one side would see a stop string where the other does not."""
    from cloud_verifier.pieces import token_pieces

    pieces = token_pieces(reference)
    assert pieces is not None
    differing = [token for token, piece in enumerate(pieces) if piece != tokenizer.piece(token)]
    assert differing == []
