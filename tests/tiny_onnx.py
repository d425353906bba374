"""Exports tiny random models, with a tokenizer that spells bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tiny_models
import torch
from onnx import TensorProto, helper, numpy_helper, save
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    TokenizersBackend,
)

from cloud_verifier.onnx_graph import write_graph

_value = helper.make_tensor_value_info

TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}{{ eos_token }}"


def write_source(config: PreTrainedConfig, directory: Path) -> PreTrainedModel:
    """A Hugging Face directory with seeded random weights; the model in it."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(directory)
    write_tokenizer(directory)
    return model.train(False)


def write_tokenizer(directory: Path) -> None:
    """A byte-level tokenizer of the size of `tiny_models.VOCABULARY`, with a chat template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[: tiny_models.VOCABULARY - 1]
    backend = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = TokenizersBackend(tokenizer_object=backend, eos_token="<end>")  # noqa: S106
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(directory)


def write_model(config: PreTrainedConfig, directory: Path) -> PreTrainedModel:
    """The ONNX model beside its tokenizer; the model it was made from."""
    model = write_source(config, directory)
    write_graph(model, directory / "model.onnx", name="tiny")
    return model


def write_growing(directory: Path, *, seed: int = 0) -> None:
    """A model of one layer that returns a longer cache each time, as other exporters write them.

    Its attention is no more than a mean of values; what counts is that the cache decides.
    """
    rng, vocabulary, width = np.random.default_rng(seed), tiny_models.VOCABULARY, 8
    weights = {
        "embedding": rng.normal(0, 1, (vocabulary, width)),
        "head": rng.normal(0, 1, (width, vocabulary)),
    }
    constants = [numpy_helper.from_array(v.astype(np.float32), k) for k, v in weights.items()]
    constants.append(numpy_helper.from_array(np.array([1], np.int64), "heads"))
    nodes = [
        helper.make_node("Gather", ["embedding", "input_ids"], ["x"]),  # [1, m, width]
        helper.make_node("Unsqueeze", ["x", "heads"], ["new"]),  # [1, 1, m, width]
        *(
            helper.make_node(
                "Concat", [f"past_key_values.0.{kind}", "new"], [f"present.0.{kind}"], axis=2
            )
            for kind in ("key", "value")
        ),
        helper.make_node("Tanh", ["present.0.key"], ["shaped"]),
        helper.make_node("CumSum", ["shaped", "axis"], ["seen"]),
        helper.make_node("ReduceSum", ["seen", "heads"], ["flat"], keepdims=0),
        helper.make_node("MatMul", ["flat", "head"], ["logits"]),
        helper.make_node("Shape", ["attention_mask"], ["unused"]),
    ]
    constants.append(numpy_helper.from_array(np.array(2, np.int64), "axis"))
    cache = [f"0.{kind}" for kind in ("key", "value")]
    graph = helper.make_graph(
        nodes,
        "growing",
        [
            _value("input_ids", TensorProto.INT64, [1, "m"]),
            _value("attention_mask", TensorProto.INT64, [1, "n"]),
            *(
                _value(f"past_key_values.{one}", TensorProto.FLOAT, [1, 1, "p", width])
                for one in cache
            ),
        ],
        [
            _value("logits", TensorProto.FLOAT, [1, "k", vocabulary]),
            *(_value(f"present.{one}", TensorProto.FLOAT, [1, 1, "q", width]) for one in cache),
        ],
        constants,
    )
    directory.mkdir(exist_ok=True)
    opset = [helper.make_opsetid("", 18)]
    save(helper.make_model(graph, opset_imports=opset, ir_version=10), directory / "model.onnx")
    write_tokenizer(directory)
