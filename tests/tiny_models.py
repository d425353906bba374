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
    PreTrainedConfig,
    TokenizersBackend,
)

VOCABULARY = 97
WINDOW = 8

_SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


def llama() -> PreTrainedConfig:
    """Grouped queries, full attention."""
    return LlamaConfig(**_SHAPE, num_hidden_layers=3)


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
        **_SHAPE,
        num_hidden_layers=4,
        head_dim=16,
        sliding_window=WINDOW,
        attn_logit_softcapping=2.0,
        initializer_range=0.3,
    )


def mamba() -> PreTrainedConfig:
    """Recurrent: its state can't be rewound."""
    return MambaConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=4)


SERVED: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": llama,
    "gemma3": gemma3,
    "gemma2": gemma2,
}


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
