"""The examples, as they run by themselves on the demo pair."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

pytestmark = [pytest.mark.models, pytest.mark.slow]


def demonstrated(name: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), "--demo", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout


@pytest.fixture
def dialogue(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    spec = importlib.util.spec_from_file_location("dialogue", EXAMPLES / "dialogue.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_assistant_starts_a_verifier_and_answers() -> None:
    [first, answer, second, another] = demonstrated("assistant.py").splitlines()
    assert (first, second) == ("> What is the capital of Italy?", "> And of Spain?")
    assert answer == "The capital of Italy is Rome."
    assert another


def test_the_character_says_whole_sentences(verifier: str) -> None:
    said = demonstrated("dialogue.py", "--verifier", verifier, "--budget-ms", "60000")
    lines = re.findall(r"^Mira: (.*?)  \(\d+ ms\)$", said, re.MULTILINE | re.DOTALL)
    assert len(lines) == 2
    assert all(re.search(r"[.!?…][\"'”’)]*$", line) for line in lines)


def test_the_character_does_not_wait_for_what_is_late(verifier: str) -> None:
    said = demonstrated("dialogue.py", "--verifier", verifier, "--budget-ms", "1")
    assert re.findall(r"^Mira: (.*)  \(", said, re.MULTILINE) == ["Hm.", "Hm."]


def test_the_translation_follows_what_is_heard_and_says_how_it_went(verifier: str) -> None:
    *lines, report = demonstrated("translation.py", "--verifier", verifier).splitlines()
    final = [line for line in lines if line.startswith("=")]
    settled = re.compile(r"[=…] [A-Z].*  \(\d+ ms, \d+ passes\)")
    assert len(final) == 2
    assert "the bells of the church rang for two hours" in final[1]
    assert all(settled.fullmatch(line) for line in lines if not line.startswith(">"))
    assert re.match(r"2 lines, 6 updates, .* lag \d+ ms, .* flicker .* passes an update", report)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Aye. It is mine, and", "Aye."),
        ("“Who asks?” I wonder", "“Who asks?”"),
        ("It cost 3.50 at the", ""),
        ("Well... No!", "Well... No!"),
        ("", ""),
    ],
)
def test_what_is_said_ends_with_a_sentence(dialogue: ModuleType, text: str, said: str) -> None:
    assert dialogue.complete_sentences(text) == said
