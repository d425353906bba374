"""The `llm` command-line tool, told of the endpoint as of any server of OpenAI's kind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("llm")

from endpoint_world import World, alone, chat_prompt, text_of

CONFIG = """\
- model_id: draftwire
  model_name: table
  api_base: {url}/v1
- model_id: draftwire-text
  model_name: table
  api_base: {url}/v1
  completion: true
"""


def llm(served: World, folder: Path, *arguments: str) -> str:
    (folder / "extra-openai-models.yaml").write_text(CONFIG.format(url=served.url))
    environment = {"LLM_USER_PATH": str(folder), "LLM_LOAD_PLUGINS": "", "HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, "-m", "llm", *arguments],
        capture_output=True,
        timeout=120,
        env={"PATH": os.environ["PATH"], "PYTHONUTF8": "1"} | environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()  # as it is: no line ends are to be changed


@pytest.mark.slow
def test_a_prompt_is_answered_with_the_target_s_own_text(served: World, tmp_path: Path) -> None:
    options = ["-m", "draftwire", "-o", "temperature", "0", "-o", "max_tokens", "24", "--no-stream"]
    said = llm(served, tmp_path, "prompt", "the cat", *options)
    assert said.strip() == text_of(alone(chat_prompt("the cat"), 24)).strip()


@pytest.mark.slow
def test_a_conversation_is_streamed_and_goes_on(served: World, tmp_path: Path) -> None:
    options = ["-m", "draftwire", "-o", "temperature", "0", "-o", "max_tokens", "8"]
    llm(served, tmp_path, "prompt", "the cat", *options)
    first = text_of(alone(chat_prompt("the cat"), 8))
    said = llm(served, tmp_path, "prompt", "-c", "go on", *options)
    prompt = f"user: the cat\nassistant: {first}\nuser: go on\nassistant:"
    assert said.strip() == text_of(alone(prompt, 8)).strip()


@pytest.mark.slow
def test_a_plain_completion(served: World, tmp_path: Path) -> None:
    options = ["-m", "draftwire-text", "-o", "temperature", "0", "-o", "max_tokens", "24"]
    said = llm(served, tmp_path, "prompt", "the cat", *options)
    assert said.strip() == text_of(alone("the cat", 24)).strip()
