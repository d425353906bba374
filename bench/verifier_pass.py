"""What the verifier's packed, paged pass costs beside the same forward in plain transformers.

One model object runs three ways in turn, interleaved within one process:

  packed   HFTarget.verify: sessions packed into one pass over paged KV, tokens chosen, drafts
           judged.
  plain    The model as transformers ships it, a batch of rows of equal length on a DynamicCache
           (which is rewound after each forward), and an argmax.
  plain*   The same with the target's faster linear layers, so that what differs is packing,
           paging and attention only.

Each row is a session that feeds the same number of tokens at the same context, since plain
transformers can batch nothing else; its KV blocks lie scattered. Times are medians in
milliseconds, ratios medians of the paired ratios packed/plain and packed/plain*: noise that lasts
longer than one round falls on both sides of a pair. With --check a ratio above --limit fails.
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
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from transformers import DynamicCache

from cloud_verifier.hf_target import HFTarget
from cloud_verifier.target import Row
from draftwire.testing.demo import demo_model_path


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", help="directory, hub id or .gguf file (default: the demo model, float32)"
    )
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[1, 4, 8], help="sessions in a pass (1 4 8)"
    )
    parser.add_argument(
        "--tokens", type=int, nargs="+", default=[5], help="tokens a session feeds, K + 1 (5)"
    )
    parser.add_argument(
        "--contexts", type=int, nargs="+", default=[64, 512], help="tokens before them (64 512)"
    )
    parser.add_argument("--repeats", type=int, default=15, help="rounds per case (15)")
    parser.add_argument("--threads", type=int, help="torch threads (default: torch's own)")
    parser.add_argument("--limit", type=float, default=1.10, help="largest ratio allowed (1.10)")
    parser.add_argument("--check", action="store_true", help="exit 1 if a ratio exceeds the limit")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there, too")
    return parser


def _timed_ms(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return (time.perf_counter() - started) * 1e3


class Case:
    """Sessions of one size, filled up to `context` on both sides."""

    def __init__(self, target: HFTarget, rows: int, tokens: int, context: int) -> None:
        draw = random.Random(rows * 1000 + context)
        vocabulary = target.card.vocabulary_size
        self.target, self.tokens = target, tokens
        ids = [[draw.randrange(vocabulary) for _ in range(context + tokens)] for _ in range(rows)]
        blocks = list(range(target.num_blocks))
        draw.shuffle(blocks)
        each = -(-(context + tokens) // target.block_size)
        self.rows = []
        for i, row in enumerate(ids):
            table = blocks[i * each : (i + 1) * each]
            target.verify([Row(tokens=row[:context], start=0, blocks=table, judge=False)])
            self.rows.append(
                Row(tokens=row[context:], start=context, blocks=table, drafts=tokens - 1)
            )
        self.new = torch.tensor([row[context:] for row in ids])
        with target.plain() as model, torch.inference_mode():
            self.new = self.new.to(model.device)
            self.cache = DynamicCache(config=model.config)
            for layer in self.cache.layers:  # a sliding window must be rewound as well
                getattr(layer, "activate_past_recording", lambda: None)()
            model(
                input_ids=torch.tensor([row[:context] for row in ids], device=model.device),
                cache=self.cache,
                use_cache=True,
                logits_to_keep=1,
            )
            self.cache.crop(0)

    def packed(self) -> float:
        """One pass of the target, ms."""
        return _timed_ms(lambda: self.target.verify(self.rows))

    def plain(self, *, linear_layers: bool) -> float:
        """One forward of the model itself, ms."""
        with self.target.plain(linear_layers=linear_layers) as model, torch.inference_mode():

            def forward() -> object:
                logits = model(
                    input_ids=self.new,
                    cache=self.cache,
                    use_cache=True,
                    logits_to_keep=self.tokens,
                ).logits
                return logits.argmax(-1).tolist()

            took = _timed_ms(forward)
            self.cache.crop(-self.tokens)
        return took

    def measure(self, repeats: int) -> dict[str, float]:
        """Medians of the three ways and of the paired ratios."""
        ways: dict[str, Callable[[], float]] = {
            "packed": self.packed,
            "plain": lambda: self.plain(linear_layers=True),
            "plain_star": lambda: self.plain(linear_layers=False),
        }
        order = list(ways)
        times: dict[str, list[float]] = {name: [] for name in ways}
        for i in range(repeats + 2):
            for name in order:
                took = ways[name]()
                if i >= 2:  # two rounds to warm up
                    times[name].append(took)
            order.append(order.pop(0))  # nobody always runs after the same neighbour
        result = {f"{name}_ms": statistics.median(took) for name, took in times.items()}
        for name in ("plain", "plain_star"):
            pairs = zip(times["packed"], times[name], strict=True)
            result[f"ratio_{name}"] = statistics.median(a / b for a, b in pairs)
        return result


def _print_row(cells: Sequence[object]) -> None:
    print("  ".join(f"{cell:>8}" for cell in cells), flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and return the exit status."""
    options = _parser().parse_args(argv)
    source = options.model or str(demo_model_path())
    need = max(options.rows) * (max(options.contexts) + max(options.tokens) + 16)
    target = HFTarget.load(
        source,
        kv_tokens=need,
        threads=options.threads,
        progress=lambda line: print(line, file=sys.stderr),
    )
    print(f"{target.card.target.model}, {target.card.target.dtype}")
    print(f"{torch.get_num_threads()} threads, {os.cpu_count()} CPUs, torch {torch.__version__}\n")
    _print_row(["rows", "tokens", "context", "packed", "plain", "plain*", "ratio", "ratio*"])
    results = []
    for context in options.contexts:
        for tokens in options.tokens:
            for rows in options.rows:
                got = Case(target, rows, tokens, context).measure(options.repeats)
                results.append({"rows": rows, "tokens": tokens, "context": context, **got})
                times = [f"{got[f'{name}_ms']:.1f}" for name in ("packed", "plain", "plain_star")]
                ratios = [f"{got[f'ratio_{name}']:.2f}" for name in ("plain", "plain_star")]
                _print_row([rows, tokens, context, *times, *ratios])
    worst = max(max(r["ratio_plain"], r["ratio_plain_star"]) for r in results)
    print(f"\nlargest ratio {worst:.2f}, limit {options.limit:.2f}")
    if options.json:
        report = {
            "benchmark": "verifier_pass",
            "model": target.card.target.model,
            "dtype": target.card.target.dtype,
            "machine": platform.processor() or platform.machine(),
            "cpus": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "repeats": options.repeats,
            "limit": options.limit,
            "largest_ratio": worst,
            "results": results,
        }
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    target.close()
    return 1 if options.check and worst > options.limit else 0


if __name__ == "__main__":
    sys.exit(main())
