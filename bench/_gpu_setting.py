"""What the ways of `bench.gpu_engine` share: model, device and texts."""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from cloud_verifier.attention import Need
from cloud_verifier.hf_target import HFTarget
from cloud_verifier.loading import LoadedTarget
from cloud_verifier.outline import outline
from cloud_verifier.target import Row
from draftwire.types import ServingLimits, TargetIdentity

EIGHT_BILLION: dict[str, Any] = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}
TINY: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 512,
    "max_position_embeddings": 8192,
}


class Bench:
    """The model, the device and the texts that all ways share.

    `options` are those of `bench.gpu_engine`. `failures` says what did not run and should have.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.failures: list[str] = []
        self.device = torch.device(options.device)
        self.dtype = torch.float32 if options.tiny else torch.bfloat16
        self.shape = TINY if options.tiny else EIGHT_BILLION
        self.config = LlamaConfig(**self.shape)
        self.context: int = options.context
        self.longest: int = options.context + max(options.drafts) + 1
        draw = random.Random(0)
        self.texts = [
            [draw.randrange(self.config.vocab_size) for _ in range(self.longest)]
            for _ in range(max(options.sessions))
        ]
        torch.manual_seed(0)
        with self.device:
            self.model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                self.config, dtype=self.dtype
            )
        self.model.train(False)
        self.shipped = str(self.model.config._attn_implementation)
        size = outline(self.config)
        embeddings = self.config.vocab_size * self.config.hidden_size * self.dtype.itemsize
        self.weights_bytes = size.weights_bytes(self.dtype) - embeddings
        self.kv_bytes_per_token = size.kv_bytes_per_token(self.dtype)
        self.need = Need.of(self.config, size.shapes, device=self.device, dtype=self.dtype)
        self.bytes_per_s = self._bandwidth()

    @property
    def dtype_name(self) -> str:
        """As in "bfloat16"."""
        return str(self.dtype).removeprefix("torch.")

    def describe(self) -> str:
        """The device in words."""
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "CPU"

    def cases(self) -> Iterator[tuple[int, int]]:
        """Sessions and drafts."""
        for sessions in self.options.sessions:
            for drafts in self.options.drafts:
                yield sessions, drafts

    def floor_ms(self, sessions: int, drafts: int) -> float:
        """The time to read weights and KV once, ms."""
        read = sessions * (self.context + drafts + 1) * self.kv_bytes_per_token
        return (self.weights_bytes + read) / self.bytes_per_s * 1e3

    def median_ms(self, run: Callable[[], object]) -> float:
        """Of a pass that ends with a copy to the host, and so waits for the device."""
        for _ in range(3):
            run()
        times = []
        for _ in range(self.options.repeats):
            self.wait()
            started = time.perf_counter()
            run()
            times.append((time.perf_counter() - started) * 1e3)
        return statistics.median(times)

    def wait(self) -> None:
        """For the device to have done all it was told."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def blocks(self, target: HFTarget, session: int) -> range:
        """Blocks of a session, a stride apart: none of them are neighbours."""
        each = -(-self.longest // target.block_size)
        return range(session, session + each * len(self.texts), len(self.texts))

    @contextmanager
    def target(self, attention: str, *, graphs: bool) -> Iterator[HFTarget]:
        """A target on the model, with the contexts of all sessions filled."""
        self.model.set_attn_implementation(self.shipped)
        loaded = LoadedTarget(
            model=self.model,
            identity=TargetIdentity(
                model="random",
                digest=b"",
                dtype=self.dtype_name,
                vocabulary_fingerprint=b"",
                noise_version=1,
                eos_token_ids=(),
            ),
            vocabulary_size=self.config.vocab_size,
            max_context=self.config.max_position_embeddings,
        )
        target = HFTarget(
            loaded,
            kv_tokens=len(self.texts) * (self.longest + 256),
            limits=ServingLimits(max_context=self.longest),
            attention=attention,
            cuda_graphs=graphs,
        )
        try:
            for i, text in enumerate(self.texts):
                prompt, blocks = text[: self.context], self.blocks(target, i)
                target.verify([Row(tokens=prompt, start=0, blocks=blocks, judge=False)])
            yield target
        finally:
            target.close()
            self.model.set_attn_implementation(self.shipped)
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    def _bandwidth(self) -> float:
        size = 2**22 if self.options.tiny else 2**31
        source = torch.ones(size, dtype=torch.uint8, device=self.device)
        destination = torch.empty_like(source)
        best = float("inf")
        for _ in range(5):
            self.wait()
            started = time.perf_counter()
            destination.copy_(source)
            self.wait()
            best = min(best, time.perf_counter() - started)
        return 2 * size / best


def say(line: str) -> None:
    """Progress, on stderr."""
    print(line, file=sys.stderr, flush=True)
