"""Writes GGUF files of tiny random models, for what the demo model can't show."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

TRAINED_CONTEXT = 40
WIDTH = 32


def write_attention_model(path: Path, *, chat_template: str | None = None) -> Path:
    """A Llama of one layer, trained for `TRAINED_CONTEXT` tokens."""
    writer = _writer(path, "llama", "tiny llama")
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    writer.add_feed_forward_length(2 * WIDTH)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // 2)
    _add(writer, "blk.0.attn_norm.weight", WIDTH)
    for part in "qkv":
        _add(writer, f"blk.0.attn_{part}.weight", WIDTH, WIDTH)
    _add(writer, "blk.0.attn_output.weight", WIDTH, WIDTH)
    _add(writer, "blk.0.ffn_norm.weight", WIDTH)
    _add(writer, "blk.0.ffn_gate.weight", 2 * WIDTH, WIDTH)
    _add(writer, "blk.0.ffn_up.weight", 2 * WIDTH, WIDTH)
    _add(writer, "blk.0.ffn_down.weight", WIDTH, 2 * WIDTH)
    return _finish(writer, path)


def write_recurrent_model(path: Path) -> Path:
    """A Mamba of one layer: its state can't be rewound."""
    inner, state, rank, kernel = 2 * WIDTH, 16, 4, 4
    writer = _writer(path, "mamba", "tiny mamba")
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_ssm_conv_kernel(kernel)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(state)
    writer.add_ssm_time_step_rank(rank)
    _add(writer, "blk.0.attn_norm.weight", WIDTH)
    _add(writer, "blk.0.ssm_in.weight", 2 * inner, WIDTH)
    _add(writer, "blk.0.ssm_conv1d.weight", inner, kernel)
    _add(writer, "blk.0.ssm_conv1d.bias", inner)
    _add(writer, "blk.0.ssm_x.weight", rank + 2 * state, inner)
    _add(writer, "blk.0.ssm_dt.weight", inner, rank)
    _add(writer, "blk.0.ssm_dt.bias", inner)
    _add(writer, "blk.0.ssm_a", inner, state, scale=-1.0)
    _add(writer, "blk.0.ssm_d", inner)
    _add(writer, "blk.0.ssm_out.weight", WIDTH, inner)
    return _finish(writer, path)


def _writer(path: Path, architecture: str, name: str) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(name)
    writer.add_context_length(TRAINED_CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    # A byte-level vocabulary without merges, as GPT-2 spells bytes, and an end token.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    spelling = {byte: chr(byte) for byte in printable}
    spelling |= {byte: chr(256 + i) for i, byte in enumerate(rest)}
    tokens = [*(spelling[byte] for byte in range(256)), "he", "<end>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * 257 + [gguf.TokenType.CONTROL])
    writer.add_token_merges(["h e"])
    writer.add_eos_token_id(257)
    writer.add_bos_token_id(257)
    writer.add_add_bos_token(True)
    _add(writer, "token_embd.weight", len(tokens), WIDTH)
    _add(writer, "output.weight", len(tokens), WIDTH)
    _add(writer, "output_norm.weight", WIDTH)
    return writer


def _add(writer: gguf.GGUFWriter, name: str, *shape: int, scale: float = 0.3) -> None:
    rng = np.random.default_rng(list(name.encode()))
    values = (
        scale * np.abs(rng.standard_normal(shape)) if scale < 0 else rng.normal(0, scale, shape)
    )
    writer.add_tensor(name, values.astype(np.float32))


def _finish(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
