"""What the verifier's engine costs beside the bare forward of the same rows, and how it scales.

`Engine.step` is driven in this process (no gRPC) by scripted devices: they draft the target's own
greedy continuation, which is computed first, with one token in ten replaced at places that a seed
chooses, the same for all, so that all sessions stay equally long. Every committed token is held
against the script. After each step the same tokens go through the model as transformers ships it
(its own attention, a DynamicCache that is rolled back likewise; the target's linear layers), or
before it, in turn, so that drift falls on both:

  step     `Engine.step`: frames in, schedule, one pass, tokens chosen and judged, frames out
  bare     the model's forward alone: logits, of which nothing is read
  overhead median of the paired ratios step/bare, less 1
  outside  what of the step was not the pass

Then KV for four full sessions serves sixteen, whose devices take some time to draft, beside the
same sixteen with KV for all. With --check the exit status is 1 where a limit isn't kept: overhead
of 5 % (10 % below four rows), 8 sessions at 2.5 times the tokens/s of one at K = 4.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from bench import _crowd, _overhead
from bench._crowd import Crowd
from bench._overhead import Cost
from bench._progress import Progress
from bench._scripts import SHARE_WRONG, kv_tokens, write
from cloud_verifier.hf_target import HFTarget
from draftwire.testing.demo import demo_model_path

SESSIONS, LENGTHS, QUICK_SESSIONS, QUICK_LENGTHS = (1, 2, 4, 8, 16), (0, 4, 8), (1, 4), (0, 4)
ROUNDS, QUICK_ROUNDS = 15, 5
SPEEDUP, SPEEDUP_AT, SPEEDUP_K = 2.5, 8, 4
CROWD, ROOM = 16, 4


def speedup(costs: Sequence[Cost]) -> float | None:
    """Tokens/s of many sessions over those of one; None if they weren't measured."""
    rates = {cost.sessions: cost.tokens_per_s for cost in costs if cost.k == SPEEDUP_K}
    if not {1, SPEEDUP_AT} <= rates.keys():
        return None
    return rates[SPEEDUP_AT] / rates[1]


def faults(costs: Sequence[Cost]) -> list[str]:
    """The limits that these figures do not keep."""
    found = [
        f"{cost.sessions} sessions, K = {cost.k}: {cost.overhead:.1%} over the bare forward, "
        f"above {cost.limit:.0%}"
        for cost in costs
        if cost.overhead > cost.limit
    ]
    gain = speedup(costs)
    if gain is not None and gain < SPEEDUP:
        found.append(f"{SPEEDUP_AT} sessions at {gain:.2f} times one session, below {SPEEDUP:g}")
    return found


def run(target: HFTarget, options: argparse.Namespace) -> tuple[list[Cost], list[Crowd]]:
    """Everything that was asked for, printed as it comes."""
    scripts = write(
        target, options.texts, prompt=options.context, length=options.length, progress=Progress()
    )
    costs, crowds = list[Cost](), list[Crowd]()
    _print_head(_overhead.HEAD)
    for k in options.k:
        for sessions in options.sessions:
            costs.append(_overhead.measure(target, scripts[:sessions], k, options.rounds))
            _print_row(costs[-1].cells())
    if options.crowd:
        print()
        _print_head(_crowd.HEAD)
        for room in (CROWD, ROOM):
            crowds.append(_crowd.run(target, scripts[:CROWD], room, SPEEDUP_K))
            _print_row(crowds[-1].cells())
    return costs, crowds


def _print_head(cells: Sequence[str]) -> None:
    _print_row(cells)
    _print_row(["---:"] * len(cells))


def _print_row(cells: Sequence[str]) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.engine",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", help="as for serve --model (default: the demo model, float32)")
    parser.add_argument("--sessions", type=int, nargs="+", default=None, metavar="N")
    parser.add_argument("--k", type=int, nargs="+", default=None, metavar="K")
    parser.add_argument("--rounds", type=int, help=f"steps of a case ({ROUNDS})")
    parser.add_argument("--context", type=int, default=64, help="tokens of a prompt (64)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (1)")
    parser.add_argument("--no-crowd", dest="crowd", action="store_false", help="leave KV short out")
    parser.add_argument("--quick", action="store_true", help="a few cases in a minute")
    parser.add_argument("--check", action="store_true", help="exit 1 if a limit isn't kept")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there, too")
    return parser


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    options = _parser().parse_args(argv)
    options.sessions = options.sessions or (QUICK_SESSIONS if options.quick else SESSIONS)
    options.k = options.k or (QUICK_LENGTHS if options.quick else LENGTHS)
    options.rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    options.crowd = options.crowd and not options.quick
    options.texts = max([*options.sessions, CROWD if options.crowd else 1])
    options.length = (max(options.k) + 1) * (_overhead.WARM_UP + options.rounds) + 1
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and return the exit status."""
    options = _options(argv)
    logging.getLogger("cloud_verifier").setLevel(logging.ERROR)  # it warns of every preemption
    source = options.model or str(demo_model_path())
    room = kv_tokens(options.texts, prompt=options.context, length=options.length)
    target = HFTarget.load(source, kv_tokens=room, threads=options.threads)
    identity = target.card.target
    print(f"{identity.model}, {identity.dtype}, {torch.get_num_threads()} threads, greedy")
    print(f"{SHARE_WRONG:.0%} of the drafts replaced, prompts of {options.context} tokens\n")
    costs, crowds = run(target, options)
    target.close()
    gain, missed = speedup(costs), faults(costs)
    if gain is not None:
        print(f"\n{SPEEDUP_AT} sessions at K = {SPEEDUP_K}: {gain:.2f} times the tokens/s of one")
    if options.json:
        report: dict[str, Any] = {
            "benchmark": "engine",
            "model": identity.model,
            "dtype": identity.dtype,
            "machine": platform.processor() or platform.machine(),
            "cpus": os.cpu_count(),
            "threads": options.threads,
            "torch": torch.__version__,
            "rounds": options.rounds,
            "context": options.context,
            "share_wrong": SHARE_WRONG,
            "speedup": gain,
            "missed": missed,
            "costs": [asdict(cost) | {"rows": cost.rows} for cost in costs],
            "crowds": [asdict(c) | {"tokens_per_s": c.tokens_per_s} for c in crowds],
        }
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    for line in missed:
        print(line, file=sys.stderr)
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
