"""A causal language model of transformers as an ONNX graph that writes into the cache it is given.

transformers' attention is replaced by one operator, ONNX Runtime's GroupQueryAttention. It takes a
cache of any length, [1, heads, positions, size], how many positions of it count, and writes the
new ones behind them. So rolling back is counting less, and no pass copies the cache.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.onnx import ops
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from cloud_verifier.rollback import probe
from draftwire.errors import ModelLoadFailed

IMPLEMENTATION = "draftwire_onnx"

CACHE = "draftwire.cache"
"""Metadata key that says how the graph treats its cache; read by `edge_client.drafters.onnx`."""

WEIGHTS = "draftwire.weights"
"""Metadata key that says what the linear layers' weights are kept in."""

_OPSET = 20


def write_graph(model: PreTrainedModel, path: Path, *, name: str) -> None:
    """Write `model` (float32, on the CPU) to `path`, its weights to a file beside it.

    Inputs: `input_ids` [1, m], `attention_mask` [1, positions + m], `position_ids` [1, m] and for
    each layer N `past_key_values.N.key` and `.value`. Outputs: `logits` of the last token
    [1, 1, vocab] and the caches again, as `present.N.key` and `.value`, to be bound to the same
    memory. Raises `ModelLoadFailed` for a model that can't be written so.
    """
    heads = [(count, size) for count, size, _ in probe(model, name)[0]]
    AttentionInterface.register(IMPLEMENTATION, _attention)
    AttentionMaskInterface.register(IMPLEMENTATION, _no_mask)
    before = model.config._attn_implementation
    model.set_attn_implementation(IMPLEMENTATION)
    caches = [torch.zeros(1, count, 8, size) for count, size in heads for _ in range(2)]
    names = [f"{layer}.{kind}" for layer in range(len(heads)) for kind in ("key", "value")]
    rows, length = torch.export.Dim("rows", min=1), torch.export.Dim("length", min=1)
    positions = torch.export.Dim("positions", min=1)
    arguments = (
        torch.zeros(1, 3, dtype=torch.int64),
        torch.ones(1, 5, dtype=torch.int64),
        torch.arange(3)[None],
        caches,
    )
    try:
        with torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the exporter's own innards
            program = torch.onnx.export(
                _Step(model),
                arguments,
                dynamo=True,
                verbose=False,
                opset_version=_OPSET,
                input_names=[
                    *("input_ids", "attention_mask", "position_ids"),
                    *(f"past_key_values.{one}" for one in names),
                ],
                output_names=["logits", *(f"present.{one}" for one in names)],
                dynamic_shapes={
                    "tokens": {1: rows},
                    "mask": {1: length},
                    "positions": {1: rows},
                    "caches": [{2: positions}] * len(caches),
                },
            )
    except Exception as error:  # the exporter's errors are many, and say what it can't do
        raise ModelLoadFailed(
            f"{name} can't be written as ONNX: {str(error).splitlines()[0]}",
            remedy="choose a model of the Llama, Qwen, Mistral, Gemma or Phi families",
        ) from error
    finally:
        model.set_attn_implementation(before)
    assert program is not None  # noqa: S101 (no file name was given)
    program.model.metadata_props.update(
        {CACHE: "in place", WEIGHTS: "float32", "draftwire.name": name}
    )
    program.save(path, external_data=True)


class _Step(torch.nn.Module):
    """One pass: tokens and caches in, logits of the last token and caches out."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self._model = model

    def forward(
        self,
        tokens: torch.Tensor,
        mask: torch.Tensor,
        positions: torch.Tensor,
        caches: Sequence[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        length = mask.sum(1).to(torch.int32)  # [1]
        cache = _Cache(caches, length)
        output = self._model(
            input_ids=tokens,
            position_ids=positions,
            cache=cache,
            use_cache=True,
            logits_to_keep=1,
            onnx_cache=cache,
        )
        return output.logits, *cache.present


class _Cache:
    """What transformers takes for a cache; the attention operator does its work."""

    is_compileable = False
    is_sliding = (False,)

    def __init__(self, caches: Sequence[torch.Tensor], length: torch.Tensor) -> None:
        self.caches = caches
        self.length = length
        self.present: list[torch.Tensor] = []

    def update(
        self, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return key, value

    def get_seq_length(self, *_: Any) -> int:
        return 0

    def get_query_offset(self, *_: Any) -> int:
        return 0

    def get_mask_sizes(self, *_: Any) -> tuple[int, int]:
        return 0, 0


def _no_mask(*_: Any, **__: Any) -> None:
    """The operator knows by itself what lies behind a token."""


def _attention(
    module: Any,
    query: torch.Tensor,  # [1, heads, m, size]
    key: torch.Tensor,
    value: torch.Tensor,
    _mask: torch.Tensor | None,
    *,
    scaling: float,
    onnx_cache: _Cache,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    heads, rows, size = query.shape[1:]
    layer = 2 * module.layer_idx
    past_key, past_value = onnx_cache.caches[layer : layer + 2]
    packed = [one.transpose(1, 2).reshape(1, rows, -1) for one in (query, key, value)]
    output, *present = ops.symbolic_multi_out(
        "com.microsoft::GroupQueryAttention",
        [*packed, past_key, past_value, onnx_cache.length - 1, onnx_cache.length],
        attrs={
            "num_heads": heads,
            "kv_num_heads": key.shape[1],
            "scale": float(scaling),
            "local_window_size": int(sliding_window or -1),
            "softcap": float(softcap or 0.0),
        },
        dtypes=[query.dtype, past_key.dtype, past_value.dtype],
        shapes=[[1, rows, heads * size], list(past_key.shape), list(past_value.shape)],
        version=1,
    )
    onnx_cache.present += present
    return output.reshape(1, rows, heads, size), None
