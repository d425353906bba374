"""Passes of the verifier on a GPU against what the memory allows and plain transformers does.

The model is a Llama of 8 billion random parameters in bfloat16 (--tiny: a toy in float32). Its
passes verify B sessions that feed K + 1 tokens each after --context tokens. Ways:

  plain           the model as transformers ships it, a batch on a DynamicCache, and an argmax
  sdpa            HFTarget.verify with gathered KV and masks
  varlen          HFTarget.verify with attention that reads the paged pool in place
  varlen+graphs   the same, its passes recorded and replayed

The floor is the time to read what a pass must read, the weights but for the embedding table and
the sessions' KV, at the bandwidth measured by copying memory. Times are medians in milliseconds.
Every way's logits are compared with those of sdpa: the largest difference is stated relative to
the largest logit, and a token may differ only where sdpa's two best logits are closer than twice
that difference. Without a CUDA device there is nothing to measure; --tiny --device cpu runs the
same code anywhere.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from bench._gpu_setting import Bench, say
from bench._gpu_ways import TOLERANCE, Measured, measure_all


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu (cuda)")
    parser.add_argument("--tiny", action="store_true", help="a toy model, to try the script")
    parser.add_argument("--context", type=int, default=1024, help="tokens before a pass (1024)")
    parser.add_argument(
        "--sessions", type=int, nargs="+", default=[1, 8, 32], help="sessions in a pass (1 8 32)"
    )
    parser.add_argument(
        "--drafts", type=int, nargs="+", default=[0, 4, 8], help="draft tokens K (0 4 8)"
    )
    parser.add_argument("--repeats", type=int, default=20, help="passes per median (20)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write a table there")
    return parser


def table(bench: Bench, results: Sequence[Measured]) -> str:
    """Markdown: a line per case, a column per way, with its distance from the floor."""
    ways = list(dict.fromkeys(result.way for result in results))
    lines = [
        " ".join(
            (
                f"{bench.describe()}, torch {torch.__version__};",
                "toy Llama" if bench.options.tiny else "Llama of 8B parameters, random ones,",
                f"in {bench.dtype_name}; context {bench.context};",
                f"copies at {bench.bytes_per_s / 1e9:.0f} GB/s.",
                "Milliseconds a pass (times the floor).",
            )
        ),
        "",
        "| sessions | K | floor | " + " | ".join(ways) + " |",
        "|---" * (3 + len(ways)) + "|",
    ]
    for sessions, drafts in bench.cases():
        found = {r.way: r for r in results if (r.sessions, r.drafts) == (sessions, drafts)}
        cells = [
            f"{r.median_ms:.2f} ({r.median_ms / r.floor_ms:.2f})" if (r := found.get(way)) else "–"
            for way in ways
        ]
        floor = f"{bench.floor_ms(sessions, drafts):.2f}"
        lines.append("| " + " | ".join([str(sessions), str(drafts), floor, *cells]) + " |")
    for way in ways:
        compared = [r for r in results if r.way == way and r.difference is not None]
        if compared:
            lines += ["", _compared(way, compared)]
    return "\n".join(lines) + "\n"


def _compared(way: str, results: Sequence[Measured]) -> str:
    difference = max(result.difference or 0 for result in results)
    agreement = min(result.agreement or 0 for result in results)
    unexplained = sum(result.unexplained or 0 for result in results)
    return (
        f"{way} beside sdpa: logits differ by up to {difference:.1e} of the largest (allowed "
        f"{TOLERANCE}); in every case {agreement:.1%} or more of the tokens are the same; "
        f"{unexplained} differ without a near-tie."
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and return the exit status: 1 if a way's logits are wrong."""
    options = _parser().parse_args(argv)
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print("There is no CUDA device here: nothing to measure.")
        return 0
    say(f"making the model on {options.device}")
    bench = Bench(options)
    say(f"{bench.describe()}: copies {bench.bytes_per_s / 1e9:.0f} GB/s")
    results = []
    for result in measure_all(bench):
        results.append(result)
        say(
            f"{result.way}: {result.sessions} sessions, K = {result.drafts}: "
            f"{result.median_ms:.2f} ms, {result.median_ms / result.floor_ms:.2f} times the floor"
        )
    print(table(bench, results), end="")
    if options.markdown:
        options.markdown.write_text(table(bench, results), encoding="utf-8")
    if options.json:
        report = {
            "benchmark": "gpu_engine",
            "device": bench.describe(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "model": bench.shape,
            "dtype": bench.dtype_name,
            "context": bench.context,
            "bytes_per_s": bench.bytes_per_s,
            "tolerance": TOLERANCE,
            "results": [asdict(result) for result in results],
        }
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    wrong: list[object] = [result for result in results if result.wrong]
    wrong += bench.failures
    for fault in wrong:
        say(f"wrong: {fault}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
