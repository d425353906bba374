"""The ways in which `bench.gpu_engine` runs a pass, and what each takes."""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig, PreTrainedModel

from cloud_verifier.attention import NAMES, Need, refusal
from cloud_verifier.hf_target import HFTarget
from cloud_verifier.loading import LoadedTarget
from cloud_verifier.outline import outline
from cloud_verifier.target import Row
from draftwire.errors import ModelLoadFailed
from draftwire.types import ServingLimits, TargetIdentity

TOLERANCE = 0.05
"""Largest difference of logits between attention back ends in bfloat16, of the largest logit."""

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

_PROMPT_CHUNK = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One way in one case. What compares with sdpa is None for plain and for sdpa itself."""

    way: str
    sessions: int
    drafts: int
    median_ms: float
    floor_ms: float
    difference: float | None = None  # of the largest logit
    agreement: float | None = None  # share of equal greedy tokens
    unexplained: int | None = None  # tokens that differ without a near-tie

    @property
    def wrong(self) -> bool:
        """Whether the logits are further from sdpa's than rounding explains."""
        return self.difference is not None and (
            not self.difference <= TOLERANCE or bool(self.unexplained)
        )


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


def measure_all(bench: Bench) -> Iterator[Measured]:
    """All ways that there are on the device, in all cases."""
    expected: dict[tuple[int, int], torch.Tensor] = {}
    yield from _tried(bench, "plain", _plain(bench))
    for attention in NAMES:
        if reason := refusal(attention, bench.need):
            say(f"{attention} is left out: {reason}")
        elif attention != "flex" or bench.device.type == "cpu":  # there it takes varlen's part
            yield from _tried(bench, attention, _packed(bench, attention, False, expected))
            if attention == "varlen":
                graphs = _packed(bench, attention, True, expected)
                yield from _tried(bench, f"{attention}+graphs", graphs)


def _tried(bench: Bench, way: str, results: Iterator[Measured]) -> Iterator[Measured]:
    """A way's results, as far as it goes: the others are measured all the same."""
    try:
        yield from results
    except (ModelLoadFailed, torch.OutOfMemoryError) as error:
        bench.failures.append(f"{way}: {error}")


def _plain(bench: Bench) -> Iterator[Measured]:
    for sessions in bench.options.sessions:
        cache = DynamicCache(config=bench.config)
        ids = torch.tensor(bench.texts[:sessions], device=bench.device)

        def forward(new: torch.Tensor, rows: int, cache: DynamicCache = cache) -> torch.Tensor:
            logits: torch.Tensor = bench.model(
                input_ids=new, cache=cache, use_cache=True, logits_to_keep=rows
            ).logits
            return logits

        def again(
            new: torch.Tensor,
            forward: Callable[[torch.Tensor, int], torch.Tensor] = forward,
            cache: DynamicCache = cache,
        ) -> object:
            tokens = forward(new, new.shape[1]).argmax(-1)
            cache.crop(-new.shape[1])
            return tokens.tolist()

        with torch.inference_mode():
            for start in range(0, bench.context, _PROMPT_CHUNK):
                forward(ids[:, start : min(bench.context, start + _PROMPT_CHUNK)], 1)
            for drafts in bench.options.drafts:
                new = ids[:, bench.context : bench.context + drafts + 1].contiguous()
                yield Measured(
                    way="plain",
                    sessions=sessions,
                    drafts=drafts,
                    median_ms=bench.median_ms(lambda new=new, again=again: again(new)),  # type: ignore[misc]
                    floor_ms=bench.floor_ms(sessions, drafts),
                )


def _packed(
    bench: Bench, attention: str, graphs: bool, expected: dict[tuple[int, int], torch.Tensor]
) -> Iterator[Measured]:
    """One way of the target. `expected` holds sdpa's logits; sdpa itself fills it."""
    with bench.target(attention, graphs=graphs) as target:
        for sessions, drafts in bench.cases():
            rows = [
                Row(
                    tokens=bench.texts[i][bench.context : bench.context + drafts + 1],
                    start=bench.context,
                    blocks=bench.blocks(target, i),
                    drafts=drafts,
                )
                for i in range(sessions)
            ]
            logits = target.logits(rows).float().cpu()
            compared = {}
            if (sessions, drafts) in expected:
                compared = _compare(logits, expected[sessions, drafts])
            elif attention == "sdpa":
                expected[sessions, drafts] = logits
            yield Measured(
                way=attention + ("+graphs" if graphs else ""),
                sessions=sessions,
                drafts=drafts,
                median_ms=bench.median_ms(lambda rows=rows: target.verify(rows)),  # type: ignore[misc]
                floor_ms=bench.floor_ms(sessions, drafts),
                **compared,
            )


def _compare(got: torch.Tensor, want: torch.Tensor) -> dict[str, Any]:
    """How logits, `[rows, vocab]`, differ: fields of `Measured`."""
    difference = float((got - want).abs().max())
    best = want.topk(2).values
    other = got.argmax(-1) != want.argmax(-1)
    apart = best[:, 0] - best[:, 1] > 2 * difference
    return {
        "difference": difference / float(want.abs().max()),
        "agreement": 1 - float(other.float().mean()),
        "unexplained": int((other & apart).sum()),
    }


def say(line: str) -> None:
    """Progress, on stderr."""
    print(line, file=sys.stderr, flush=True)
