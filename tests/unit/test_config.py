"""Clients described in a file: the keys are the commands' options."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftwire.errors import InvalidRequest
from edge_client.config import read_config


def config(folder: Path, text: str) -> Path:
    path = folder / "draftwire.toml"
    path.write_text(text)
    return path


def test_keys_are_the_commands_options(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret\n")
    read = read_config(
        config(
            tmp_path,
            """
            verifier = "gpu.example.net:7433"
            model = "models/draft.gguf"
            threads = 3
            api-key-file = "key"
            objective = "cost"
            max-tokens = 40
            temperature = 0.5
            stop = ["end", "stop"]
            logit-bias = ["42:-100"]
            prompt-lookup = true
            timeout = 30
            """,
        )
    )
    assert read.client["verifier"] == "gpu.example.net:7433"
    assert read.client["model"] == str(tmp_path / "models" / "draft.gguf")
    assert (read.client["threads"], read.client["objective"]) == (3, "cost")
    assert read.client["credentials"].api_key == "secret"
    generation = read.generation
    assert (generation["max_tokens"], generation["temperature"]) == (40, 0.5)
    assert generation["stop"] == ["end", "stop"]
    assert generation["logit_bias"] == {42: -100.0}
    assert generation["prompt_lookup"] is True
    assert generation["timeout_s"] == 30


def test_a_grammar_may_be_in_a_file_beside_it(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text('{"type": "object"}')
    read = read_config(config(tmp_path, 'model = "x"\njson-schema = "schema.json"'))
    assert read.generation["json_schema"] == '{"type": "object"}'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('modle = "draft.gguf"', ["modle is no key", "did you mean model?"]),
        ("max_tokens = 5", ["max_tokens is no key", "did you mean max-tokens?"]),
        ("colour = 5", ["colour is no key", "use some of", "verifier"]),
        ("insecure = 1", ["insecure is 1, not true or false"]),
        ("threads = true", ["threads is True, not text or a number"]),
        ("verifier = ['a:1']", ["verifier is ['a:1'], not text"]),
        ("[models]\nmodel = 'x'", ["models is no key"]),
        ("model = { file = 'x' }", ["model is {'file': 'x'}, not text"]),
        ("threads = 0", ["threads", "not at least 1"]),
        ("objective = 'speed'", ["objective", "latency"]),
        ("temperature = -1", ["temperature is -1.0"]),
        ("api-key-file = 'missing'", ["api-key-file: ", "missing can't be read"]),
        ("model = '~nobody-of-this-name/x'", ["model is '~nobody", "no such home"]),
        ("max-tokens = 1.5", ["max-tokens", "1.5"]),
        ("num-draft-tokens = 100000", ["num_draft_tokens is 100000, not in [0, 256]"]),
        ("model = ", ["can't be read", "give a TOML file"]),
    ],
)
def test_what_is_wrong_is_named_and_so_is_the_remedy(
    tmp_path: Path, text: str, words: list[str]
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_config(config(tmp_path, text))
    assert "draftwire.toml" in str(refused.value)
    assert all(word in str(refused.value) for word in words), str(refused.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="can't be read"):
        read_config(tmp_path / "none.toml")


def test_a_folder_or_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "bytes.toml").write_bytes(b"model = '\xff'")
    for path in (tmp_path, tmp_path / "bytes.toml"):
        with pytest.raises(InvalidRequest, match="can't be read"):
            read_config(path)
