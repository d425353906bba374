"""`pip install "draftwire[edge]"` where nothing else is, from the wheel of this checkout."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bench.footprint import build_wheel, in_environment, install_edge, sizes
from draftwire import __version__
from tools.bootstrap import find_wheel, llama_wheel_folder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_wheel(llama_wheel_folder()) is None,
        reason="building llama.cpp again takes minutes; `make setup` keeps its wheel",
    ),
]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the edge side alone."""
    folder = tmp_path_factory.mktemp("edge")
    return install_edge(build_wheel(folder), folder / "environment")


def test_it_brings_llama_cpp_and_neither_torch_nor_what_the_cloud_needs(python: Path) -> None:
    installed = {name.lower().replace("_", "-") for name in sizes(python)}
    assert {"draftwire", "grpcio", "llama-cpp-python", "numpy", "protobuf", "rich"} <= installed
    assert not installed & {"torch", "transformers", "safetensors", "accelerate", "gguf"}


def test_it_takes_less_than_200_mb(python: Path) -> None:
    assert 50e6 < sum(sizes(python).values()) < 200e6


def test_the_client_imports_and_drafts_with_llama_cpp_there(python: Path) -> None:
    code = "import edge_client, edge_client.drafters.llama; print(*edge_client.__all__)"
    assert "EdgeClient" in in_environment(python, code).split()


def test_the_command_runs(python: Path) -> None:
    command = [str(python.parent / "draftwire"), "--help"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "generate" in said
    command[1] = "--version"
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert said == f"draftwire {__version__}\n"


def test_the_verifier_s_command_says_what_is_missing(python: Path) -> None:
    command = [str(python.parent / "draftwire-verifier"), "serve", "--model", "table"]
    refused = subprocess.run(command, check=False, capture_output=True, text=True)
    assert refused.returncode == 1
    assert "pip install 'draftwire[cloud]'" in refused.stderr
