"""Which models can be verified against: those whose cache can be rewound to any position."""

from __future__ import annotations

import torch
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    DynamicLayer,
    PreTrainedConfig,
    PreTrainedModel,
)

from draftwire.errors import CannotRollBack, ModelLoadFailed

PROBE = (1, 3, 2)
"""Token ids that every vocabulary has."""

_SERVED = {"full_attention", "sliding_attention"}


def check_rollback(config: PreTrainedConfig, name: str, *, trust_remote_code: bool = False) -> None:
    """Raise `CannotRollBack` for recurrent and hybrid models.

    Their state after a token can't be taken back, so a rejected draft would leave its trace.
    Raises `ModelLoadFailed` for what is no causal language model, or attends in a way that
    is not served. Needs the configuration only, no weights.
    """
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                config, trust_remote_code=trust_remote_code
            )
    except (ValueError, KeyError, ImportError, AttributeError) as error:
        raise ModelLoadFailed(
            f"{name} is a {config.model_type} model, which transformers can't run as a causal "
            f"language model: {error}",
            remedy="choose a decoder-only text model that transformers runs without remote code",
        ) from error
    refusal = CannotRollBack(
        f"{name} is a {config.model_type} model: its state can't be rewound after a rejected draft",
        remedy="choose a model with attention layers only",
    )
    if getattr(model, "_is_stateful", False):
        raise refusal
    try:
        layers = DynamicCache(config=config).layers
    except KeyError as error:
        raise refusal from error
    if any(not layer.is_croppable for layer in layers):
        raise refusal
    kinds = set(getattr(config.get_text_config(decoder=True), "layer_types", None) or ())
    if kinds - _SERVED:
        raise ModelLoadFailed(
            f"{name} has layers of a kind not served: {', '.join(sorted(kinds - _SERVED))}",
            remedy="choose a model with full and sliding-window attention only",
        )


def windows_of(config: PreTrainedConfig) -> set[int | None]:
    """How far layers see back; None is among them where one sees all."""
    layers = DynamicCache(config=config).layers
    return {getattr(layer, "sliding_window", None) for layer in layers}


def probe(model: PreTrainedModel, name: str) -> tuple[list[tuple[int, int, int]], torch.Tensor]:
    """Run `PROBE` as transformers would.

    Returns, per layer, key heads, key size and value size, and the logits, `[tokens, vocab]`.
    Raises `CannotRollBack` for a model that keeps other state than keys and values.
    """
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        output = model(
            input_ids=torch.tensor([PROBE], device=model.device), cache=cache, use_cache=True
        )
    shapes = []
    for layer in cache.layers:
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if not isinstance(layer, DynamicLayer) or keys is None or values is None:
            raise CannotRollBack(
                f"{name} keeps state that can't be rewound after a rejected draft",
                remedy="choose a model with attention layers only",
            )
        shapes.append((keys.shape[1], keys.shape[3], values.shape[3]))
    return shapes, output.logits[0]
