"""What the target says alone, from transformers as it ships: no code of the verifier's passes.

Greedy text comes from `generate`. Sampled text is one forward of one token at a time, and the
token the greatest of logit/T + noise(seed, position): `match` mode's definition and nothing more.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM

from cloud_verifier.gguf_conversion import without_progress_bars
from cloud_verifier.model_source import locate
from draftwire.noise import NOISE_VERSION, gumbel
from draftwire.types import SamplingParams

CACHE = Path(__file__).resolve().parent.parent / ".cache" / "reference"


@dataclass(frozen=True, slots=True)
class Best:
    """The two tokens with the best scores at a position, best first, and how far they lie apart."""

    first: int
    second: int
    margin: float


class Reference:
    """The target in float32, loaded when first needed. What it said is kept under `cache`."""

    def __init__(self, source: str, *, cache: Path | None = CACHE, threads: int = 1) -> None:
        """`source` as for `draftwire-verifier serve --model`; `cache` None keeps nothing."""
        self.directory = locate(source, report=lambda _: None).directory
        self._cache = cache
        self._threads = threads

    def text(
        self, prompt: Sequence[int], sampling: SamplingParams, count: int, *, ends: bool
    ) -> list[Best]:
        """Up to `count` tokens after `prompt` (each is `first` of its Best).

        With `ends` an end token is the last; without, the text goes on.
        """
        about = (self._state, list(prompt), sampling.temperature, sampling.seed, count, ends)
        name = hashlib.blake2b(repr(about).encode(), digest_size=16).hexdigest()
        path = self._cache / f"{name}.json" if self._cache else None
        if path is not None and path.is_file():
            return [Best(*entry) for entry in json.loads(path.read_text())]
        with torch.inference_mode():
            if sampling.greedy:
                text = self._generate(prompt, count, ends=ends)
            else:
                text = self._sample(prompt, sampling, count, ends=ends)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps([[b.first, b.second, b.margin] for b in text]))
        return text

    def best(self, context: Sequence[int], sampling: SamplingParams) -> Best:
        """The two best tokens after `context`, from one forward over all of it."""
        with torch.inference_mode():
            logits = self._model(torch.tensor([context]), logits_to_keep=1).logits[0, -1]
        return _best(logits, len(context), sampling)

    def ended_by(self, token: int) -> bool:
        """Whether the target ends a text with this token."""
        return token in self._ends

    def _generate(self, prompt: Sequence[int], count: int, *, ends: bool) -> list[Best]:
        ids = torch.tensor([prompt])
        output = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=self._ends if ends else None,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_logits=True,
        )
        tokens = output.sequences[0, len(prompt) :].tolist()
        text = [_best(row[0], 0, SamplingParams()) for row in output.logits]
        if tokens != [best.first for best in text]:
            raise AssertionError("generate did not choose its own greatest logits")
        return text

    def _sample(
        self, prompt: Sequence[int], sampling: SamplingParams, count: int, *, ends: bool
    ) -> list[Best]:
        text: list[Best] = []
        cache, feed = None, list(prompt)
        while len(text) < count and not (ends and text and self.ended_by(text[-1].first)):
            output = self._model(torch.tensor([feed]), cache=cache, use_cache=True)
            cache = output.cache
            position = len(prompt) + len(text)
            text.append(_best(output.logits[0, -1], position, sampling))
            feed = [text[-1].first]
        return text

    @cached_property
    def _model(self) -> Any:
        torch.set_num_threads(self._threads)
        with without_progress_bars():
            model = AutoModelForCausalLM.from_pretrained(self.directory, dtype=torch.float32)
        model.train(False)
        return model

    @cached_property
    def _ends(self) -> list[int]:
        config = json.loads((self.directory / "generation_config.json").read_text())
        ends = config.get("eos_token_id")
        return list(ends) if isinstance(ends, list) else [] if ends is None else [ends]

    @cached_property
    def _state(self) -> tuple[str, ...]:
        """Whatever the text depends on besides the request: weights, libraries, this code."""
        files = [*sorted(self.directory.glob("*.safetensors")), Path(__file__)]
        digests = []
        for path in files:
            with path.open("rb") as file:
                digests.append(hashlib.file_digest(file, "blake2b").hexdigest())
        return (*digests, torch.__version__, transformers.__version__, str(NOISE_VERSION))


def _best(logits: torch.Tensor, position: int, sampling: SamplingParams) -> Best:
    """The two best scores of a row: logits, or logits/T + noise, in float64."""
    scores: NDArray[np.float64] = logits.double().numpy()
    if not sampling.greedy:
        scores = scores / sampling.temperature + gumbel(sampling.seed, [position], scores.size)[0]
    first = int(np.argmax(scores))
    best, scores = scores[first], scores.copy()
    scores[first] = -np.inf
    second = int(np.argmax(scores))
    return Best(first, second, float(best - scores[second]))
