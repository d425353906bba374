"""Weight-only quantization of a loaded model, through torchao.

The linear layers keep their weights in 8 or 4 bits and multiply by what those stand for; the
output head, the embeddings and the KV stay as they are. The quantized model *is* the target: its
text is its own, and its identity says so.
"""

from __future__ import annotations

import importlib
import logging
from importlib.metadata import version
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from cloud_verifier.progress import megabytes
from draftwire.errors import InvalidRequest, MissingDependency, ModelLoadFailed

KINDS = ("int8", "int4")

_GROUP = 128
"""Weights of a row that share a scale, in int4."""

_log = logging.getLogger(__name__)


def check(kind: str, device: torch.device) -> None:
    """Refuse what can't be done, before weights are loaded.

    Raises `InvalidRequest` for an unknown kind, and for int4 on a CPU, where torchao has no
    kernel for it; `MissingDependency` without torchao.
    """
    if kind not in KINDS:
        raise InvalidRequest(f"quantize {kind!r} is unknown", remedy=f"choose {' or '.join(KINDS)}")
    if kind == "int4" and device.type != "cuda":
        raise InvalidRequest(
            f"int4 weights need a CUDA device, not {device.type}", remedy="quantize to int8"
        )
    _torchao()


def quantize(model: PreTrainedModel, kind: str, name: str) -> str:
    """Quantize the weights of `model` in place; returns what made them, for the identity.

    Raises `ModelLoadFailed` for a model whose large weights are not in linear layers, or whose
    layers int4 can't divide into groups.
    """
    torchao = _torchao()
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    layers = {id(m): m for m in model.modules() if type(m) is nn.Linear and m is not head}
    _check_layers(model, list(layers.values()), kind, name)
    before = _size_bytes(model)
    try:
        torchao.quantize_(
            model, _config(torchao, kind), filter_fn=lambda layer, _: id(layer) in layers
        )
    except (ImportError, AssertionError, NotImplementedError, RuntimeError, ValueError) as error:
        raise ModelLoadFailed(
            f"torchao can't quantize {name} to {kind} here: {error}",
            remedy="load it without --quantize",
        ) from error
    _log.info(
        "quantized %d linear layers of %s to %s: %s instead of %s",
        *(len(layers), name, kind, megabytes(_size_bytes(model)), megabytes(before)),
    )
    return f"{kind} torchao {version('torchao')}"


def _torchao() -> Any:
    try:
        quantization = importlib.import_module("torchao.quantization")
    except ImportError as error:
        raise MissingDependency(
            "quantized weights take the package torchao",
            remedy="pip install 'draftwire[quantize]'",
        ) from error
    return quantization


def _config(torchao: Any, kind: str) -> Any:
    if kind == "int8":
        return torchao.Int8WeightOnlyConfig(set_inductor_config=False)
    return torchao.Int4WeightOnlyConfig(
        group_size=_GROUP, int4_packing_format="tile_packed_to_4d", set_inductor_config=False
    )


def _check_layers(model: PreTrainedModel, layers: list[nn.Linear], kind: str, name: str) -> None:
    weights = {id(layer.weight) for layer in layers}
    # Experts are stored as one three-dimensional parameter, which torchao's configurations for
    # linear layers leave alone.
    if any(p.dim() > 2 and id(p) not in weights for p in model.parameters()):
        raise ModelLoadFailed(
            f"{name} has weights outside linear layers, as experts are, and they would stay large",
            remedy="load it without --quantize",
        )
    if not layers:
        raise ModelLoadFailed(
            f"{name} has no plain linear layers, or is quantized already",
            remedy="load it without --quantize",
        )
    if kind == "int8":
        return
    if model.dtype != torch.bfloat16:
        raise ModelLoadFailed(
            f"int4 weights go with bfloat16, and {name} is {model.dtype}",
            remedy="add --dtype bfloat16",
        )
    if any(layer.in_features % _GROUP for layer in layers):
        raise ModelLoadFailed(
            f"{name} has layers whose width is no multiple of {_GROUP}, as int4 needs it",
            remedy="quantize to int8",
        )


def _size_bytes(model: nn.Module) -> int:
    """Memory of the parameters, those that several layers share once."""
    return sum(_tensor_bytes(p) for p in {id(p): p for p in model.parameters()}.values())


def _tensor_bytes(tensor: torch.Tensor) -> int:
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        return tensor.nbytes
    return sum(_tensor_bytes(getattr(tensor, name)) for name in flatten()[0])
