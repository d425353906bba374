"""Faster float32 linear layers on a CPU.

`torch.nn.functional.linear` hands float32 to a BLAS library that is tuned for large matrices.
With the few rows of a verification pass it takes two to three times as long as oneDNN, which
torch brings along and uses by itself for bfloat16 only; with many rows oneDNN is no slower.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TypeGuard

import torch
from torch import nn

# oneDNN, and torch above it, keep what they prepared for the last 1,024 shapes, of which every
# number of rows is one: near a megabyte each. What the passes at hand use is a few dozen.
_KEPT = {"LRU_CACHE_CAPACITY": "64", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64"}


def available() -> bool:
    """Whether this build of torch has the operator, and runs it."""
    try:
        _linear(torch.zeros(8, 8), None, torch.zeros(1, 8))
    except (AttributeError, RuntimeError):
        return False
    return True


def install(model: nn.Module) -> int:
    """Let the float32 linear layers of `model` on the CPU take the faster way; how many do.

    Weights stay where they are and are not copied. `remove` undoes it. The memory that oneDNN may
    keep is bounded through the environment, unless that says so already; it is read once, so that
    it has no effect in a process that has used oneDNN before.
    """
    for name, capacity in _KEPT.items():
        os.environ.setdefault(name, capacity)
    if not available():
        return 0
    layers = [layer for layer in model.modules() if _eligible(layer)]
    for layer in layers:
        # Bound to the weights, not to the layer: no cycle keeps a closed model alive.
        layer.forward = partial(_linear, layer.weight, layer.bias)  # type: ignore[method-assign]
    return len(layers)


def remove(model: nn.Module) -> None:
    """Undo `install`."""
    for layer in model.modules():
        if _eligible(layer):
            layer.__dict__.pop("forward", None)


def _eligible(layer: nn.Module) -> TypeGuard[nn.Linear]:
    return (
        type(layer) is nn.Linear
        and type(layer.weight.data) is torch.Tensor  # quantized weights are another class
        and layer.weight.device.type == "cpu"
        and layer.weight.dtype == torch.float32
    )


def _linear(weight: torch.Tensor, bias: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out
