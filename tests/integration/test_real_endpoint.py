"""`draftwire endpoint` and configured clients on the demo pair: the text is the target's own."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("llama_cpp")
pytest.importorskip("starlette")
pytest.importorskip("openai")

from both_clients import Driven
from openai import OpenAI

from bench._reference import Reference
from draftwire.testing.demo import demo_model_path
from draftwire.types import SamplingParams
from edge_client import AsyncEdgeClient, EdgeClient
from edge_client.drafters.llama_model import LlamaModel

pytestmark = [pytest.mark.models, pytest.mark.slow]

ASK: Any = [{"role": "user", "content": "Name three colours, and say where one sees them."}]
READY = re.compile(r"serving (\S+) on (http://\S+/v1), with a page at \S+\n")


@pytest.fixture(scope="module")
def openai(verifier: str) -> Iterator[OpenAI]:
    command = [sys.executable, "-m", "edge_client", "endpoint", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        [*command, "--verifier", verifier, "--threads", "1", "--name", "demo"],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        ready = READY.fullmatch(process.stdout.readline())
        assert ready
        assert ready[1] == "demo"
        with OpenAI(base_url=ready[2], api_key="none", max_retries=0, timeout=120) as client:
            yield client
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@pytest.mark.parametrize(
    "sampling", [SamplingParams(), SamplingParams(temperature=0.8, seed=5)], ids=["greedy", "0.8"]
)
def test_an_answer_is_the_target_s_own_text(
    openai: OpenAI, model: LlamaModel, sampling: SamplingParams
) -> None:
    prompt = model.tokenizer.encode_chat(ASK)
    reference = Reference(str(demo_model_path()))
    said = [best.first for best in reference.text(prompt, sampling, 60, ends=True)]
    text = b"".join(map(model.tokenizer.piece, said)).decode()
    asked: Any = {
        "model": "demo",
        "messages": ASK,
        "max_tokens": 60,
        "temperature": sampling.temperature,
        "seed": sampling.seed,
    }
    whole = openai.chat.completions.create(**asked)
    assert whole.choices[0].message.content == text
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (len(prompt), len(said))
    chunks = openai.chat.completions.create(**asked, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text


def test_a_schema_is_kept_to_and_parsed_by_the_client(openai: OpenAI) -> None:
    pytest.importorskip("llguidance")
    schema = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "green"]}, "warm": {"type": "boolean"}},
        "required": ["colour", "warm"],
        "additionalProperties": False,
    }
    form: Any = {"type": "json_schema", "json_schema": {"name": "colour", "schema": schema}}
    answer = openai.chat.completions.create(
        model="demo", messages=ASK, response_format=form, temperature=0
    )
    said = json.loads(answer.choices[0].message.content or "")
    assert set(said) == {"colour", "warm"}
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("asynchronous", [False, True], ids=["blocking", "asynchronous"])
def test_a_file_describes_a_client_and_its_texts(
    verifier: str, model: LlamaModel, tmp_path: Path, asynchronous: bool
) -> None:
    path = tmp_path / "draftwire.toml"
    path.write_text(f'verifier = "{verifier}"\nthreads = 1\nmax-tokens = 8\n')
    said = Reference(str(demo_model_path())).text(
        model.tokenizer.encode_chat(ASK), SamplingParams(), 12, ends=True
    )
    made: Any = EdgeClient.from_config(path)
    if asynchronous:
        made = Driven(AsyncEdgeClient.from_config(path))
    with made as client:
        for options, count in (({}, 8), ({"max_tokens": 12}, 12)):
            with client.generate(messages=ASK, **options) as stream:
                stream.read()
            told = list(stream.summary.token_ids)
            assert told == [best.first for best in said[:count]]
