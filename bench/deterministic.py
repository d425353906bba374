"""What the verifier's deterministic mode costs: the same passes with and without it.

One copy of the weights runs both ways in turn, interleaved within one process. A pass feeds each
of its sessions the same number of tokens (K + 1) at the same context, and judges all of them;
--prompts are passes that feed one session a chunk of a prompt. KV blocks lie scattered.

Times are medians in milliseconds, the ratio is the median of the paired ratios
deterministic/ordinary: noise that lasts longer than one round falls on both sides of a pair.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from cloud_verifier.deterministic import ROWS
from cloud_verifier.hf_target import HFTarget
from cloud_verifier.loading import load_target
from cloud_verifier.target import Row
from draftwire.testing.demo import demo_model_path
from draftwire.types import ServingLimits


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", help="directory, hub id or .gguf file (default: the demo model, float32)"
    )
    parser.add_argument("--dtype", default="auto", help="as for the verifier (auto)")
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[1, 4, 8], help="sessions in a pass (1 4 8)"
    )
    parser.add_argument(
        "--tokens", type=int, nargs="+", default=[1, 5], help="tokens a session feeds (1 5)"
    )
    parser.add_argument(
        "--contexts", type=int, nargs="+", default=[64, 512], help="tokens before them (64 512)"
    )
    parser.add_argument(
        "--prompts", type=int, nargs="*", default=[256], help="lengths of prompt chunks (256)"
    )
    parser.add_argument("--repeats", type=int, default=9, help="rounds per case (9)")
    parser.add_argument("--threads", type=int, help="torch threads (default: torch's own)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there, too")
    return parser


class Modes:
    """One copy of the weights as two targets."""

    def __init__(self, source: str, dtype: str, kv_tokens: int) -> None:
        loaded = load_target(source, dtype=dtype, device="cpu", progress=_say)
        limits = ServingLimits(
            max_context=min(loaded.max_context, kv_tokens),
            max_pending=256,
            max_credit=256,
            max_rows=33,
        )
        ordinary = HFTarget(loaded, kv_tokens=kv_tokens, limits=limits)
        with ordinary.plain():
            fixed = HFTarget(
                replace(loaded, deterministic=True), kv_tokens=kv_tokens, limits=limits
            )
        self._modes = {"ordinary": ordinary, "deterministic": fixed}
        self.names = list(self._modes)
        self.target = ordinary

    def timed_ms(self, name: str, rows: Sequence[Row]) -> float:
        """One pass in the mode of that name."""
        started = time.perf_counter()
        self._modes[name].verify(rows)
        return (time.perf_counter() - started) * 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A pass: `rows` sessions that feed `tokens` tokens each behind `context` others."""

    rows: int
    tokens: int
    context: int
    judge: bool = True

    def build(self, target: HFTarget) -> list[Row]:
        """Rows of random tokens over an untouched KV, whose content costs no time."""
        draw = random.Random(self.rows * 1000 + self.context)
        blocks = list(range(target.num_blocks))
        draw.shuffle(blocks)
        each = -(-(self.context + self.tokens) // target.block_size)
        vocabulary = target.card.vocabulary_size
        return [
            Row(
                tokens=[draw.randrange(vocabulary) for _ in range(self.tokens)],
                start=self.context,
                blocks=blocks[i * each : (i + 1) * each],
                drafts=self.tokens - 1 if self.judge else 0,
                judge=self.judge,
            )
            for i in range(self.rows)
        ]

    def measure(self, modes: Modes, repeats: int) -> dict[str, float]:
        """Medians of both ways and of the paired ratio."""
        rows = self.build(modes.target)
        times: dict[str, list[float]] = {name: [] for name in modes.names}
        for i in range(repeats + 1):
            # Neither always runs after the other.
            for name in modes.names if i % 2 else reversed(modes.names):
                took = modes.timed_ms(name, rows)
                if i:  # one round to warm up
                    times[name].append(took)
        pairs = zip(times["deterministic"], times["ordinary"], strict=True)
        result = {f"{name}_ms": statistics.median(took) for name, took in times.items()}
        return {**result, "ratio": statistics.median(a / b for a, b in pairs)}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and return the exit status."""
    options = _parser().parse_args(argv)
    if options.threads:
        torch.set_num_threads(options.threads)
    cases = [
        Case(rows=rows, tokens=tokens, context=context)
        for context in options.contexts
        for tokens in options.tokens
        for rows in options.rows
    ]
    cases += [Case(rows=1, tokens=length, context=0, judge=False) for length in options.prompts]
    need = max(case.rows * (case.context + case.tokens + 16) for case in cases)
    modes = Modes(options.model or str(demo_model_path()), options.dtype, need)
    identity = modes.target.card.target
    print(f"{identity.model}, {identity.dtype}, {ROWS} rows a forward")
    print(f"{torch.get_num_threads()} threads, {os.cpu_count()} CPUs, torch {torch.__version__}\n")
    _print_row(["rows", "tokens", "context", "ordinary", "determin.", "ratio"])
    results = []
    for case in cases:
        got = case.measure(modes, options.repeats)
        size = {"rows": case.rows, "tokens": case.tokens, "context": case.context}
        results.append({**size, **got})
        times = [f"{got[f'{name}_ms']:.1f}" for name in modes.names]
        _print_row([*size.values(), *times, f"{got['ratio']:.2f}"])
    if options.json:
        report = {
            "benchmark": "deterministic",
            "model": identity.model,
            "dtype": identity.dtype,
            "machine": platform.processor() or platform.machine(),
            "cpus": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "rows_per_forward": ROWS,
            "repeats": options.repeats,
            "results": results,
        }
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


def _print_row(cells: Sequence[object]) -> None:
    print("  ".join(f"{cell:>9}" for cell in cells), flush=True)


def _say(line: str) -> None:
    print(line, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
