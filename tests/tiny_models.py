"""Random-weight models of real architectures, small enough to load in a moment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    MixtralConfig,
    Phi3Config,
    PhiConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    TokenizersBackend,
)

VOCABULARY = 97
WINDOW = 8
LONGROPE_SWITCH = 160

_SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    # Ten times the usual: scores far apart, so that rounding does not decide between tokens.
    "initializer_range": 0.2,
}


def llama() -> PreTrainedConfig:
    """Grouped queries, full attention."""
    return LlamaConfig(**_SHAPE, num_hidden_layers=3)


def llama_dynamic() -> PreTrainedConfig:
    """Rotary frequencies that change in texts longer than the context."""
    return LlamaConfig(
        **_SHAPE,
        num_hidden_layers=3,
        rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0},
    )


def qwen2() -> PreTrainedConfig:
    """Biases in the projections of queries, keys and values."""
    return Qwen2Config(**_SHAPE, num_hidden_layers=3)


def qwen2_window() -> PreTrainedConfig:
    """Sliding windows in the last layers only."""
    return Qwen2Config(
        **_SHAPE,
        num_hidden_layers=4,
        use_sliding_window=True,
        sliding_window=WINDOW,
        max_window_layers=2,
    )


def qwen3() -> PreTrainedConfig:
    """Norms of queries and keys, heads wider than their share."""
    return Qwen3Config(**_SHAPE, num_hidden_layers=3, head_dim=16)


def qwen3_moe() -> PreTrainedConfig:
    """Two of four experts for each token."""
    return Qwen3MoeConfig(
        **_SHAPE,
        num_hidden_layers=3,
        head_dim=16,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
    )


def mistral() -> PreTrainedConfig:
    """Sliding windows in all layers."""
    return MistralConfig(**_SHAPE, num_hidden_layers=3, sliding_window=WINDOW)


def mixtral() -> PreTrainedConfig:
    """Two of four experts for each token, full attention."""
    return MixtralConfig(**_SHAPE, num_hidden_layers=3, num_local_experts=4)


def phi() -> PreTrainedConfig:
    """Attention and MLP side by side, rotation of half of each head, layer norms with biases."""
    return PhiConfig(**{**_SHAPE, "num_key_value_heads": 4}, num_hidden_layers=3)


def phi3() -> PreTrainedConfig:
    """Queries, keys and values from one matrix; sliding windows."""
    return Phi3Config(
        **_SHAPE, num_hidden_layers=3, sliding_window=WINDOW, pad_token_id=0, eos_token_id=2
    )


def phi3_longrope() -> PreTrainedConfig:
    """Rotary frequencies that differ for texts longer than `LONGROPE_SWITCH`."""
    return Phi3Config(
        **_SHAPE,
        num_hidden_layers=3,
        sliding_window=None,
        pad_token_id=0,
        eos_token_id=2,
        original_max_position_embeddings=LONGROPE_SWITCH,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1.0] * 4,
            "long_factor": [4.0] * 4,
        },
    )


def gemma3() -> PreTrainedConfig:
    """Sliding windows in all but every third layer, query norms, a scale of its own."""
    return Gemma3TextConfig(
        **_SHAPE,
        num_hidden_layers=6,
        head_dim=16,
        sliding_window=WINDOW,
        query_pre_attn_scalar=10,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
    )


def gemma2() -> PreTrainedConfig:
    """Soft-capped scores; scaled up weights bring them into the cap's range."""
    return Gemma2Config(
        **{**_SHAPE, "initializer_range": 0.3},
        num_hidden_layers=4,
        head_dim=16,
        sliding_window=WINDOW,
        attn_logit_softcapping=2.0,
    )


def mamba() -> PreTrainedConfig:
    """Recurrent: its state can't be rewound."""
    return MambaConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=4)


SERVED: dict[str, Callable[[], PreTrainedConfig]] = {
    "gemma2": gemma2,
    "gemma3": gemma3,
    "llama": llama,
    "llama-dynamic": llama_dynamic,
    "mistral": mistral,
    "mixtral": mixtral,
    "phi": phi,
    "phi3": phi3,
    "phi3-longrope": phi3_longrope,
    "qwen2": qwen2,
    "qwen2-window": qwen2_window,
    "qwen3": qwen3,
    "qwen3-moe": qwen3_moe,
}
"""Families whose packed passes are compared with separate forwards."""


def save(config: PreTrainedConfig, directory: Path, *, seed: int = 0) -> Path:
    """Write a Hugging Face directory with seeded random weights and a word-level tokenizer."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config)
    if model.generation_config is not None:
        model.generation_config.eos_token_id = [2, 5]
    model.save_pretrained(directory)
    words = {f"w{i}": i for i in range(VOCABULARY)}
    tokenizer = TokenizersBackend(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="w0")),  # noqa: S106
        unk_token="w0",  # noqa: S106
        eos_token="w2",  # noqa: S106
    )
    tokenizer.save_pretrained(directory)
    return directory
