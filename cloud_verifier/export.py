"""`draftwire-verifier export-onnx`: a model as an ONNX file that a device can draft with."""

from __future__ import annotations

import argparse
import hashlib
import importlib
import logging
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from cloud_verifier.gguf_conversion import cache_directory, without_progress_bars
from cloud_verifier.loading import load_tokenizer
from cloud_verifier.model_source import locate
from cloud_verifier.onnx_check import PROMPTS, Agreement, compare
from cloud_verifier.onnx_graph import WEIGHTS, write_graph
from cloud_verifier.progress import Report, megabytes, step
from cloud_verifier.rollback import check_rollback
from draftwire.errors import InvalidRequest, MissingDependency, ModelLoadFailed
from draftwire.reason import reason

FILE = "model.onnx"

FORMAT = 1
"""Rises whenever exporting gives other files for the same model."""

CHECKED_TOKENS = 16
"""Tokens written after each prompt of the check."""

_BITS = {"int8": 8, "int4": 4}
_BLOCK = 32  # weights that share a scale


def command(arguments: argparse.Namespace) -> int:
    """Export, check and say where; returns the exit status: 1 if the tokens differ."""
    logging.basicConfig(level=logging.ERROR)  # the exporter remarks on packages it can do without
    logging.getLogger("torch").setLevel(logging.ERROR)
    directory = export(
        arguments.model,
        arguments.output,
        weights=arguments.weights,
        report=lambda line: print(line, file=sys.stderr, flush=True),  # noqa: T201
    )
    print(directory)  # noqa: T201 (the command's output)
    return 0


def export(source: str, output: str | Path | None, *, weights: str, report: Report) -> Path:
    """Write `source` as ONNX with its tokenizer, check it, and return the directory.

    `weights` is float32, or int8 or int4 for those of the linear layers, in blocks. Without
    `output` the directory is one of the cache, where an export that is there already serves again.
    What is written in float32 must write the source's own tokens on twenty prompts; what is lost
    by fewer bits is reported only. Raises `ModelLoadFailed` where that fails, what
    `model_source.locate` raises, and `MissingDependency` without the `export` extra.
    """
    for package in ("onnx", "onnxruntime", "onnxscript"):
        _require(package)
    found = locate(source, report=report)
    kept = output is None
    directory = _cached(found.directory, weights) if output is None else Path(output)
    if kept and (directory / FILE).is_file():
        return directory
    if directory.exists() and any(directory.iterdir()):
        raise InvalidRequest(f"{directory} is not empty", remedy="name a new directory")
    name = Path(source).stem if Path(source).exists() else source
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".partial-", dir=directory.parent) as partial:
            _write(found.directory, Path(partial) / "model", name, weights, report)
            shutil.rmtree(directory, ignore_errors=True)
            (Path(partial) / "model").rename(directory)
    except OSError as error:
        raise ModelLoadFailed(
            f"{directory} can't be written: {reason(error, directory)}",
            remedy="make room, or name another directory",
        ) from error
    return directory


def _write(source: Path, directory: Path, name: str, weights: str, report: Report) -> None:
    config = AutoConfig.from_pretrained(source)
    check_rollback(config, name)
    directory.mkdir()
    with step(report, f"loading {name}"), without_progress_bars():
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
        model.train(False)
        tokenizer = load_tokenizer(source)
    plain = directory / FILE
    with step(report, f"writing {name} as ONNX"):
        write_graph(model, plain, name=name)
    agreement = _compared(plain, model, tokenizer, report, "comparing its tokens with the source's")
    report(f"float32: {_words(agreement)}")
    if not agreement.holds:
        raise ModelLoadFailed(f"the ONNX model of {name} does not write what its source does")
    if weights in _BITS:
        with step(report, f"reducing its weights to {weights}"):
            reduce_weights(plain, weights)
        agreement = _compared(plain, model, tokenizer, report, "comparing again")
        report(f"{weights}: {_words(agreement)}")
    model.config.save_pretrained(directory)
    if model.generation_config is not None:
        model.generation_config.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    report(f"{megabytes(sum(one.stat().st_size for one in directory.iterdir()))} in all")


def _compared(
    path: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    report: Report,
    doing: str,
) -> Agreement:
    number = 1

    def at(prompt: int) -> None:
        nonlocal number
        number = prompt

    with step(report, doing, reached=lambda: f"prompt {number} of {len(PROMPTS)}"):
        return compare(path, model, tokenizer, count=CHECKED_TOKENS, at=at)


def reduce_weights(path: Path, weights: str) -> None:
    """Keep a model's linear layers in int8 or int4, with a scale for each 32 weights."""
    import onnx
    from onnxruntime.quantization import matmul_nbits_quantizer as quantizer

    logging.getLogger(quantizer.__name__).setLevel(logging.WARNING)
    model = onnx.load(path)
    settings = quantizer.DefaultWeightOnlyQuantConfig(
        block_size=_BLOCK,
        is_symmetric=True,
        accuracy_level=4,  # products of 8 bits: the activations are rounded, too
        bits=_BITS[weights],
    )
    reduced: Any = quantizer.MatMulNBitsQuantizer(model, algo_config=settings)
    reduced.process()
    for entry in reduced.model.model.metadata_props:
        if entry.key == WEIGHTS:
            entry.value = weights
    for old in path.parent.glob(f"{path.name}*"):
        old.unlink()
    reduced.model.save_model_to_file(str(path), use_external_data_format=True)


def _words(agreement: Agreement) -> str:
    ties = f", {agreement.ties} more where two of it tie" if agreement.ties else ""
    return f"{agreement.same} of {agreement.tokens} tokens are the source's{ties}"


def _cached(source: Path, weights: str) -> Path:
    """The directory of an export in the cache, named by the source's files."""
    digest = hashlib.blake2b(f"{FORMAT} {weights}".encode(), digest_size=16)
    for path in sorted(source.iterdir()):
        if path.suffix in (".json", ".safetensors", ".jinja"):
            digest.update(path.name.encode())
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "blake2b").digest())
    return cache_directory() / "onnx" / f"{digest.hexdigest()}-{weights}"


def _require(package: str) -> None:
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise MissingDependency(
            f"exporting takes the package {package}", remedy="pip install 'draftwire[export]'"
        ) from error
