"""README and tutorial, done as they say, on the demo pair."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_blocks import Reader

from draftwire.testing.demo import demo_model_path

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.models, pytest.mark.slow]


def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    with Reader(tmp_path) as reader:
        reader.read(ROOT / "docs/tutorial.md")


def test_the_readme_does_what_it_says(tmp_path: Path, verifier: str) -> None:
    (tmp_path / "draft.gguf").symlink_to(demo_model_path())
    with Reader(tmp_path, verifier) as reader:
        reader.read(ROOT / "README.md")
