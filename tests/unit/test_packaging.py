"""The distribution as its users get it: light to import, typed and complete."""

from __future__ import annotations

import importlib
import re
import statistics
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("draftwire", "edge_client", "cloud_verifier")
HEAVY = ("torch", "transformers", "matplotlib", "llama_cpp", "onnxruntime", "gguf", "llguidance")

TIMED_IMPORT = f"""
import sys, time
before = time.process_time()
import edge_client
elapsed = time.process_time() - before
print(elapsed, *[name for name in {HEAVY} if name in sys.modules])
"""


def in_fresh_interpreter(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.slow
def test_importing_the_device_side_is_quick_and_loads_no_model_library() -> None:
    in_fresh_interpreter(TIMED_IMPORT)  # compiles what has not been compiled
    runs = [in_fresh_interpreter(TIMED_IMPORT).split() for _ in range(3)]
    assert [loaded for _, *loaded in runs] == [[]] * 3
    # processor time, which does not depend on what else the machine is doing
    assert statistics.median(float(elapsed) for elapsed, *_ in runs) < 0.4


def test_importing_what_both_sides_share_loads_no_grpc() -> None:
    code = "import sys, draftwire.types, draftwire.errors; print('grpc' in sys.modules)"
    assert in_fresh_interpreter(code) == "False\n"


def test_all_public_names_of_the_device_side_exist() -> None:
    edge_client = importlib.import_module("edge_client")
    assert {"AsyncEdgeClient", "EdgeClient"} <= set(edge_client.__all__)
    assert [name for name in edge_client.__all__ if not hasattr(edge_client, name)] == []
    assert list(edge_client.__all__) == sorted(edge_client.__all__)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        yield archive


@pytest.mark.slow
def test_the_wheel_holds_the_three_packages_with_their_types(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == set(PACKAGES)
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)
    assert {"draftwire/v1/verifier_pb2.py", "draftwire/v1/verifier_pb2_grpc.pyi"} <= set(names)


@pytest.mark.slow
def test_the_wheel_keeps_torch_out_of_the_edge_extra(wheel: zipfile.ZipFile) -> None:
    [path] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    metadata = Parser().parsestr(wheel.read(path).decode())
    extras = metadata.get_all("Provides-Extra", [])
    known = {
        "edge",
        "edge-onnx",
        "endpoint",
        "cloud",
        "export",
        "grammar",
        "quantize",
        "otel",
        "fuzz",
        "bench",
        "docs",
        "dev",
    }
    assert set(extras) == known
    needs = metadata.get_all("Requires-Dist", [])
    needs_torch = [line for line in needs if re.match(r"torch\b", line)]
    assert {line.split("extra == ")[1] for line in needs_torch} == {"'cloud'", "'export'"}


@pytest.mark.slow
def test_the_wheel_brings_both_commands(wheel: zipfile.ZipFile) -> None:
    [path] = [name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt")]
    lines = wheel.read(path).decode().splitlines()
    assert "draftwire = edge_client.__main__:main" in lines
    assert "draftwire-verifier = cloud_verifier.__main__:main" in lines
    assert {"edge_client/__main__.py", "cloud_verifier/__main__.py"} <= set(wheel.namelist())
