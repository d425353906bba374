"""A step of the engine beside the bare forward of the same rows."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import DynamicCache

from bench._fleet import Fleet
from bench._scripts import SHARE_WRONG, Script, acceptance, wrong_at
from cloud_verifier.hf_target import HFTarget

WARM_UP = 2
LIMIT, LIMIT_FEW, FEW_ROWS = 0.05, 0.10, 4
HEAD = ["sessions", "K", "rows", "α", "tokens/s", "step ms", "bare ms", "overhead", "outside ms"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Steps of so many sessions that draft K tokens each. Times are medians, in ms."""

    sessions: int
    k: int
    alpha: float
    tokens_per_s: float
    step_ms: float
    bare_ms: float
    outside_ms: float
    overhead: float

    @property
    def rows(self) -> int:
        """Tokens that a pass feeds."""
        return self.sessions * (self.k + 1)

    @property
    def limit(self) -> float:
        """Largest overhead allowed."""
        return LIMIT if self.rows >= FEW_ROWS else LIMIT_FEW

    def cells(self) -> list[str]:
        """A row of the table."""
        return [
            *(str(n) for n in (self.sessions, self.k, self.rows)),
            f"{self.alpha:.2f}" if self.k else "",
            f"{self.tokens_per_s:.1f}",
            *(f"{ms:.1f}" for ms in (self.step_ms, self.bare_ms)),
            f"{self.overhead:+.1%}",
            f"{self.outside_ms:.2f}",
        ]


class Bare:
    """The same texts in plain transformers: one batch on a cache that goes along."""

    def __init__(self, target: HFTarget, prompts: Sequence[Sequence[int]]) -> None:
        self._target = target
        self._length = len(prompts[0])
        with target.plain(linear_layers=False) as model, torch.inference_mode():
            self._cache = DynamicCache(config=model.config)
            for layer in self._cache.layers:  # a sliding window must be rewound as well
                getattr(layer, "activate_past_recording", lambda: None)()
            ids = torch.tensor(prompts, device=model.device)
            model(input_ids=ids, cache=self._cache, use_cache=True, logits_to_keep=1)
            self._cache.crop(0)

    def forward(self, tokens: Sequence[Sequence[int]]) -> float:
        """Feed a row of tokens to each text; returns the seconds of the model's forward."""
        with self._target.plain(linear_layers=False) as model, torch.inference_mode():
            ids, fed = torch.tensor(tokens, device=model.device), len(tokens[0])
            started = time.perf_counter()
            model(input_ids=ids, cache=self._cache, use_cache=True, logits_to_keep=fed)
            took = time.perf_counter() - started
        self._length += fed
        return took

    def roll_back(self, length: int) -> None:
        """Drop what is beyond so many tokens."""
        self._cache.crop(length - self._length if length < self._length else 0)
        self._length = length


def measure(target: HFTarget, scripts: Sequence[Script], k: int, rounds: int) -> Cost:
    """Run sessions in step for so many rounds, each beside the bare forward of its rows."""
    fleet = Fleet(target, scripts, k=k, wrong=wrong_at(SHARE_WRONG))
    fleet.prefill()
    bare = Bare(target, [script.prompt for script in scripts])
    times: list[tuple[float, float, float]] = []  # step, bare, pass
    committed = 0
    for done in range(WARM_UP + rounds):
        arrivals, before = fleet.due(), fleet.committed
        rows = [[d.script.text[d.committed - 1], *d.sent] for d in fleet.devices]
        if done % 2:
            bare_s, step_s = bare.forward(rows), fleet.step(arrivals)
        else:
            step_s, bare_s = fleet.step(arrivals), bare.forward(rows)
        start = fleet.target.rows[0].start
        fed = sorted((row.start, list(row.tokens)) for row in fleet.target.rows)
        if fed != sorted((start, row) for row in rows):
            raise AssertionError("the pass was not of these rows")
        bare.roll_back(start + 1 + fleet.devices[0].rounds[-1][1])
        if done >= WARM_UP:
            times.append((step_s, bare_s, fleet.target.seconds))
            committed += fleet.committed - before
    steps, bares, passes = zip(*times, strict=True)
    return Cost(
        sessions=len(scripts),
        k=k,
        alpha=acceptance([pair for device in fleet.devices for pair in device.rounds]),
        tokens_per_s=committed / sum(steps),
        step_ms=statistics.median(steps) * 1e3,
        bare_ms=statistics.median(bares) * 1e3,
        outside_ms=statistics.median(s - p for s, p in zip(steps, passes, strict=True)) * 1e3,
        overhead=statistics.median(s / b for s, b in zip(steps, bares, strict=True)) - 1,
    )
