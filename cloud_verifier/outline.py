"""What a model's configuration says of its size, without any weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from cloud_verifier.rollback import probe


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """`shapes` are, per layer, key heads, key size and value size, as in `PagedKV`."""

    parameters: int
    shapes: tuple[tuple[int, int, int], ...]

    def weights_bytes(self, dtype: torch.dtype) -> int:
        """Memory of the weights, bytes."""
        return self.parameters * dtype.itemsize

    def kv_bytes_per_token(self, dtype: torch.dtype) -> int:
        """KV memory of one token in all layers, bytes."""
        return dtype.itemsize * sum(heads * (key + value) for heads, key, value in self.shapes)


def outline(config: PreTrainedConfig) -> Outline:
    """Build and run the model without memory or arithmetic, and look at what it would hold.

    For a configuration that `rollback.check_rollback` accepts.
    """
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, trust_remote_code=False
        )
        shapes, _ = probe(model, config.model_type)
    return Outline(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        shapes=tuple(shapes),
    )
