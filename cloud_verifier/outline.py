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


def outline(config: PreTrainedConfig, *, trust_remote_code: bool = False) -> Outline:
    """Build and run the model without memory or arithmetic, and look at what it would hold.

    For a configuration that `rollback.check_rollback` accepts.
    """
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, trust_remote_code=trust_remote_code
        )
        try:
            shapes, _ = probe(model, config.model_type)
        except RuntimeError:  # experts and dynamic embeddings look at values, and there are none
            shapes = _stated_shapes(config)
    return Outline(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        shapes=tuple(shapes),
    )


def _stated_shapes(config: PreTrainedConfig) -> list[tuple[int, int, int]]:
    """The shapes by what the configuration says, the same for all layers."""
    text = config.get_text_config(decoder=True)
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return [(heads, size, size)] * text.num_hidden_layers
