"""Turns a `.gguf` file into a Hugging Face directory, once, in a cache.

Reading a GGUF through transformers dequantizes every tensor and rebuilds the tokenizer, which
takes from seconds to minutes; the converted directory loads in less than one. An entry is named
by the file's content and by `FORMAT`. It is made beside its place and moved there when complete,
so an interrupted conversion leaves nothing that would be taken for one.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import io
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as hf_logging

from cloud_verifier.progress import Report, megabytes, step
from cloud_verifier.rollback import check_rollback
from draftwire.errors import MissingDependency, ModelLoadFailed
from draftwire.reason import reason

FORMAT = 1
"""Rises whenever conversion gives other files for the same GGUF."""

MANIFEST = "draftwire.json"
"""File of a converted directory that lists the others with their sizes."""

_MAGIC = b"GGUF"
_STALE_S = 3600.0

_log = logging.getLogger(__name__)


def cache_directory() -> Path:
    """Where conversions live: `$XDG_CACHE_HOME/draftwire`, by default `~/.cache/draftwire`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "draftwire"


def file_digest(path: Path) -> bytes:
    """BLAKE2b-128 of a file's content, 16 bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).digest()


@contextlib.contextmanager
def without_progress_bars() -> Iterator[None]:
    """Keep transformers from drawing on standard error: progress is the caller's to show."""
    enabled = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if enabled:
            hf_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def convert(path: Path, *, progress: Report) -> Path:
    """The converted directory of a `.gguf` file, float32; made unless the cache has it.

    `progress` is told what is being done, in words. Raises `ModelLoadFailed` for a file that
    can't be converted or a cache that can't be written, `MissingDependency` without the packages
    it takes, and `CannotRollBack` for a model that drafting can't use.
    """
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise ModelLoadFailed(
                f"{path} is not a GGUF file",
                remedy="its download may be incomplete; fetch it again",
            )
    key = f"{file_digest(path).hex()}-v{FORMAT}"
    directory = cache_directory() / "converted" / key
    if _complete(directory):
        return directory
    for package in ("gguf", "accelerate"):
        _require(package)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        _sweep(directory.parent)
        with tempfile.TemporaryDirectory(prefix=".partial-", dir=directory.parent) as partial:
            _write(path, Path(partial), progress)
            _publish(Path(partial), directory)
    except OSError as error:
        raise ModelLoadFailed(
            f"{path} could not be converted in {directory.parent}: {reason(error, path)}",
            remedy="make room there, or set XDG_CACHE_HOME to a directory that can be written",
        ) from error
    progress(f"{path.name} is converted; the next start takes it from {directory}")
    return directory


def _require(package: str) -> None:
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise MissingDependency(
            f"reading a .gguf file takes the package {package}",
            remedy="pip install 'draftwire[cloud]'",
        ) from error


@contextlib.contextmanager
def _parsed_once() -> Iterator[None]:
    """Let transformers share one parse of the file.

    It parses anew for configuration, weights and tokenizer; with a large vocabulary that is most
    of the time a conversion takes.
    """
    gguf: Any = importlib.import_module("gguf")
    reader = gguf.GGUFReader
    gguf.GGUFReader = functools.cache(reader)
    try:
        yield
    finally:
        gguf.GGUFReader = reader


def _write(path: Path, directory: Path, progress: Report) -> None:
    """Fill `directory` with weights, configuration and tokenizer of the GGUF at `path`."""
    source, gguf_file = str(path.parent), path.name
    started = time.monotonic()
    doing = f"converting {path.name}"
    try:
        # The bar of the dequantization can't be switched off otherwise.
        with without_progress_bars(), contextlib.redirect_stderr(io.StringIO()), _parsed_once():
            with step(progress, f"{doing}, once: reading its description"):
                config = AutoConfig.from_pretrained(
                    source, gguf_file=gguf_file, trust_remote_code=False
                )
            check_rollback(config, path.name)
            with step(progress, f"{doing}: dequantizing its tensors"):
                model = AutoModelForCausalLM.from_pretrained(
                    source, gguf_file=gguf_file, dtype=torch.float32, trust_remote_code=False
                )
            with step(progress, f"{doing}: rebuilding its tokenizer"):
                tokenizer = AutoTokenizer.from_pretrained(
                    source, gguf_file=gguf_file, trust_remote_code=False
                )
            # The model knows itself as quantized and would be saved so: its weights move into
            # a plain one.
            config = model.config
            if hasattr(config, "quantization_config"):
                del config.quantization_config
            with torch.device("meta"):
                plain = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
            plain.load_state_dict(model.state_dict(), assign=True)
            plain.generation_config = model.generation_config
            size = model.num_parameters() * 4
            with step(
                progress,
                f"{doing}: writing {megabytes(size)}",
                reached=lambda: f"{100 * _size_bytes(directory) / size:.0f} %",
            ):
                plain.save_pretrained(directory)
            tokenizer.save_pretrained(directory)
    except (ValueError, KeyError, RuntimeError, NotImplementedError) as error:
        raise ModelLoadFailed(
            f"{path} can't be converted: {error}",
            remedy="use the model's Hugging Face directory instead of the .gguf file",
        ) from error
    sizes = {file.name: file.stat().st_size for file in sorted(directory.iterdir())}
    manifest = {"format": FORMAT, "source": path.name, "files": sizes}
    (directory / MANIFEST).write_text(json.dumps(manifest, indent=2), encoding="utf-8")
    _log.info("converted %s in %.1f s", path, time.monotonic() - started)


def _size_bytes(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.iterdir())


def _complete(directory: Path) -> bool:
    """Whether every file of the manifest is there in full length."""
    try:
        manifest = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
        return all(
            (directory / name).stat().st_size == size for name, size in manifest["files"].items()
        )
    except (OSError, ValueError, KeyError):
        return False


def _publish(partial: Path, directory: Path) -> None:
    """Move a complete conversion to its place; another process may have been faster."""
    if directory.exists() and not _complete(directory):
        shutil.rmtree(directory)
    try:
        partial.rename(directory)
    except OSError:
        if not _complete(directory):
            raise


def _sweep(parent: Path) -> None:
    """Remove what killed conversions left, sparing those that may be under way."""
    for partial in parent.glob(".partial-*"):
        with contextlib.suppress(OSError):
            if time.time() - partial.stat().st_mtime > _STALE_S:
                shutil.rmtree(partial)
