"""The ways in which `bench.gpu_engine` runs a pass, and what each takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache

from bench._gpu_setting import Bench, say
from cloud_verifier.attention import NAMES, refusal
from cloud_verifier.target import Row
from draftwire.errors import ModelLoadFailed

TOLERANCE = 0.05
"""Largest difference of logits between attention back ends in bfloat16, of the largest logit."""

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
