"""Whether an ONNX model writes what its source does: the same tokens on twenty prompts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n",
    "Water boils at a lower temperature in the mountains because",
    "Dear Sir or Madam,\n\nI am writing to",
    "1, 1, 2, 3, 5, 8, 13,",
    "Three ways to save energy at home:\n1.",
    "Q: Who wrote Hamlet?\nA:",
    "The quick brown fox",
    "SELECT name, price FROM products WHERE",
    "In 1969, the first human beings",
    "To make pancakes, mix flour, eggs and",
    '{"name": "Ada", "age":',
    "The difference between a virus and a bacterium is",
    "Monday, Tuesday, Wednesday,",
    "Photosynthesis is the process by which",
    "She opened the old wooden door and",
    "The opposite of hot is",
    "import numpy as np\n\nx = np.",
    "An apple a day keeps",
)

TIE = 1e-3
"""Two logits of the source that lie closer than this may change places by rounding."""

_CONTEXT = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How many tokens were compared, are the source's own, or differ where two of it tie."""

    tokens: int
    same: int
    ties: int

    @property
    def holds(self) -> bool:
        """Whether nothing differs but ties."""
        return self.same + self.ties == self.tokens


def compare(
    path: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    count: int,
    at: Callable[[int], object],
) -> Agreement:
    """Have the ONNX file write `count` tokens after each prompt, and ask `model` of every one.

    A text is the source's own if each token is its likeliest after those before: one forward over
    prompt and text says that of all of them. `at` is told which prompt it is at, from 1 on.
    """
    written = _OnnxText(path)
    same = ties = 0
    for number, text in enumerate(PROMPTS, 1):
        at(number)
        prompt = tokenizer(text)["input_ids"]
        tokens = written.after(prompt, count)
        with torch.inference_mode():
            ids = torch.tensor([[*prompt, *tokens[:-1]]])
            logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 :]
        best, chosen = logits.max(-1).values, logits[torch.arange(count), torch.tensor(tokens)]
        same += int((chosen == best).sum())
        ties += int(((chosen < best) & (best - chosen <= TIE)).sum())
    return Agreement(tokens=count * len(PROMPTS), same=same, ties=ties)


class _OnnxText:
    """Greedy text of a graph of `onnx_graph`, on one thread."""

    def __init__(self, path: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        self._session: Any = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self._binding: Any = self._session.io_binding()
        self._binding.bind_output("logits", "cpu")
        for one in self._session.get_inputs():
            if one.name.startswith("past_key_values."):
                array = np.zeros((1, one.shape[1], _CONTEXT, one.shape[3]), np.float32)
                cache = onnxruntime.OrtValue.ortvalue_from_numpy(array)
                self._binding.bind_ortvalue_input(one.name, cache)
                present = one.name.replace("past_key_values.", "present.")
                self._binding.bind_ortvalue_output(present, cache)

    def after(self, prompt: list[int], count: int) -> list[int]:
        """`count` tokens after the prompt."""
        tokens, feed = list(prompt), list(prompt)
        for _ in range(count):
            ids = np.array([feed], np.int64)
            mask = np.ones((1, len(tokens)), np.int64)
            positions = np.arange(len(tokens) - len(feed), len(tokens), dtype=np.int64)[None]
            self._binding.bind_cpu_input("input_ids", ids)
            self._binding.bind_cpu_input("attention_mask", mask)
            self._binding.bind_cpu_input("position_ids", positions)
            self._session.run_with_iobinding(self._binding)
            feed = [int(self._binding.get_outputs()[0].numpy()[0, -1].argmax())]
            tokens += feed
        return tokens[len(prompt) :]
