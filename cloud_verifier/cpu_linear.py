"""Faster linear layers for a few rows in float32 on a CPU.

`torch.nn.functional.linear` hands float32 to the BLAS library, which is tuned for large
matrices: with up to some dozens of rows, as verification has, it takes two to five times as long
as reading the weights needs. oneDNN, which torch brings along, is built for such shapes.
"""

from __future__ import annotations

from functools import partial
from typing import TypeGuard

import torch
from torch import nn
from torch.nn.functional import linear

MAX_ROWS = 64
"""Rows beyond which the BLAS library is used as before."""


def available() -> bool:
    """Whether this build of torch has the operator, and runs it."""
    try:
        _onednn(torch.zeros(1, 8), torch.zeros(8, 8), None)
    except (AttributeError, RuntimeError):
        return False
    return True


def install(model: nn.Module) -> int:
    """Let the float32 linear layers of `model` on the CPU take the faster way; how many do.

    Weights stay where they are and are not copied. `remove` undoes it.
    """
    if not available():
        return 0
    layers = [layer for layer in model.modules() if _eligible(layer)]
    for layer in layers:
        layer.forward = partial(_forward, layer)  # type: ignore[method-assign]
    return len(layers)


def remove(model: nn.Module) -> None:
    """Undo `install`."""
    for layer in model.modules():
        if type(layer) is nn.Linear:
            layer.__dict__.pop("forward", None)


def _eligible(layer: nn.Module) -> TypeGuard[nn.Linear]:
    return (
        type(layer) is nn.Linear
        and layer.weight.device.type == "cpu"
        and layer.weight.dtype == torch.float32
    )


def _forward(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    if x.numel() > MAX_ROWS * x.shape[-1]:
        return linear(x, layer.weight, layer.bias)
    return _onednn(x, layer.weight, layer.bias)


def _onednn(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out
