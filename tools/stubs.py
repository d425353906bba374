"""Generates shared/draftwire/v1/ from proto/, and keeps the record that guards the contract.

    python -m tools.stubs            regenerate, unless the change breaks the contract
    python -m tools.stubs --break    regenerate all the same
    python -m tools.stubs --check    change nothing; fail where something is not current

proto/baseline.binpb is the contract as it last stood. It follows every compatible change, so an
incompatible one can't land unnoticed: it fails here, and passing it with --break shows in the diff.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
STUBS = ROOT / "shared" / "draftwire" / "v1"
BASELINE = PROTO / "baseline.binpb"
PROGRAMS = Path(sys.executable).parent


def main() -> int:
    parser = argparse.ArgumentParser(description="Generate the stubs from proto/.")
    parser.add_argument("--check", action="store_true", help="only compare")
    parser.add_argument("--break", action="store_true", help="accept a change that breaks")
    options = vars(parser.parse_args())
    try:
        if BASELINE.exists() and not options["break"]:
            buf("breaking", "--against", str(BASELINE))
        with tempfile.TemporaryDirectory() as folder:
            fresh = generate(Path(folder))
            stale = [path for path, content in fresh.items() if not holds(path, content)]
            leftover = sorted(set(STUBS.glob("*_pb2*.py*")) - set(fresh))
            if not options["check"]:
                write(fresh, leftover)
                return 0
    except subprocess.CalledProcessError as error:
        return error.returncode
    for path in stale + leftover:
        print(f"{path.relative_to(ROOT)} is not what proto/ generates: run `make proto`")
    return 1 if stale or leftover else 0


def generate(folder: Path) -> dict[Path, bytes]:
    """What should stand at each path."""
    outputs = [f"--{kind}_out={folder}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    plugins = [
        f"--plugin=protoc-gen-{kind}={PROGRAMS}/protoc-gen-{kind}" for kind in ("mypy", "mypy_grpc")
    ]
    sources = sorted(str(path) for path in PROTO.rglob("*.proto"))
    protoc = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={PROTO}"]
    subprocess.run([*protoc, *plugins, *outputs, *sources], check=True, capture_output=True)
    image = folder / "image.binpb"
    buf("build", "--exclude-source-info", "-o", str(image))
    fresh = {
        STUBS / path.name: path.read_bytes() for path in (folder / "draftwire" / "v1").iterdir()
    }
    return fresh | {BASELINE: image.read_bytes()}


def holds(path: Path, content: bytes) -> bool:
    return path.exists() and path.read_bytes() == content


def write(fresh: dict[Path, bytes], leftover: list[Path]) -> None:
    for path, content in fresh.items():
        path.write_bytes(content)
    for path in leftover:
        path.unlink()


def buf(*arguments: str) -> None:
    subprocess.run([PROGRAMS / "buf", *arguments], check=True, cwd=ROOT)


if __name__ == "__main__":
    sys.exit(main())
