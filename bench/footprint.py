"""What the device side costs to have: what its install takes on disk, and its import in time.

Builds the wheel, installs `draftwire[edge]` from it into an environment of its own, with pip's
index and cache and the llama.cpp that set-up has built, and prints two tables. Sizes are those of
the files as installed, without bytecode; times are medians over fresh interpreters that find the
bytecode there, of processor and of wall time, the interpreter's own start apart.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.bootstrap import CONSTRAINTS, ROOT, find_wheel, llama_wheel_folder

STEPS = {
    "`import edge_client`": "import edge_client",
    "and what `draftwire` needs to parse its arguments": "import edge_client.cli",
    "and llama.cpp": "import edge_client.drafters.llama",
}
_SIZES = """
import importlib.metadata as metadata, json
print(json.dumps({
    one.name: sum(
        file.locate().stat().st_size
        for file in one.files or () if file.suffix != ".pyc" and file.locate().is_file()
    )
    for one in metadata.distributions()
}))
"""
_TIMES = """
import json, time
started, spent = time.perf_counter(), time.process_time()
{code}
print(json.dumps([time.process_time() - spent, time.perf_counter() - started]))
"""


def build_wheel(folder: Path) -> Path:
    """The wheel of this checkout, built into `folder`."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("draftwire-*.whl"))


def install_edge(wheel: Path, environment: Path) -> Path:
    """Make a virtual environment that holds the wheel with its extra `edge`; returns its Python.

    llama.cpp is the one that set-up built; without it pip would build it, which takes minutes.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin" / "python"
    llama = find_wheel(llama_wheel_folder())
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    command += ["--no-compile", "--disable-pip-version-check", "-c", str(CONSTRAINTS)]
    command += [f"{wheel}[edge]", *([str(llama)] if llama else ())]
    subprocess.run(command, check=True)
    return python


def in_environment(python: Path, code: str) -> str:
    """What `code` prints in a fresh interpreter that sees its own environment only."""
    command = [str(python), "-I", "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def sizes(python: Path) -> dict[str, int]:
    """Bytes of each distribution in the environment."""
    measured: dict[str, int] = json.loads(in_environment(python, _SIZES))
    return measured


def times(python: Path, code: str, runs: int) -> tuple[float, float]:
    """Median ms of processor and of wall time that `code` takes in an interpreter that runs."""
    measured = [
        json.loads(in_environment(python, _TIMES.format(code=code))) for _ in range(runs + 1)
    ]
    spent, elapsed = zip(*measured[1:], strict=True)  # the first one compiles
    return statistics.median(spent) * 1e3, statistics.median(elapsed) * 1e3


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=9, metavar="N", help="interpreters each")
    runs = parser.parse_args(argv).runs
    with tempfile.TemporaryDirectory() as scratch:
        python = install_edge(build_wheel(Path(scratch)), Path(scratch) / "edge")
        print("| Installed | MB |\n|---|---|")
        installed = sorted(sizes(python).items(), key=lambda pair: -pair[1])
        for name, size in installed:
            print(f"| {name} | {size / 1e6:.1f} |")
        print(f"| in all | {sum(size for _, size in installed) / 1e6:.1f} |")
        print("\n| Imported | processor, ms | wall, ms |\n|---|---|---|")
        for name, code in STEPS.items():
            spent, elapsed = times(python, code, runs)
            print(f"| {name} | {spent:.0f} | {elapsed:.0f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
