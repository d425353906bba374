"""Is the split text the target's own, token for token?

Prompts of many kinds × {greedy, T = 0.8 with a seed} × drafts per round K × round trips, run side
by side in shuffled order, so that passes of the verifier mix sessions, prompts, sampling and K.
Real draft model, real verifier process, real socket; the link emulator adds the round trip. Each
text is compared with what the target says alone in transformers as it ships (`generate` for
greedy, one-token forwards and the position-keyed rule for sampling; see bench/_reference.py).

At the first token that differs, the two best scores of that position (logits, or logits/T +
noise) are computed anew. If they are the two tokens in question and lie within --tie of each
other, the position is a true tie, which rounding decides: it is printed with its margin and
excused, and the rest is compared with what the target says after it. Everything else is a
failure. Exit status: 0 identical, 1 different.

What the target says alone is kept in .cache/reference, keyed by weights, library versions and
request; --fresh computes it again. The full grid is 520 texts of 48 tokens.

  make identity
  make identity ARGS="--quick"
  make identity ARGS="--prompts 3 --k 3 adaptive --rtt 150 --tokens 200"
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from bench._comparison import TIE, Case, Comparison, run_links
from bench._progress import Progress
from bench._prompts import PROMPTS, Prompt
from bench._reference import CACHE, Reference
from draftwire.testing.demo import demo_model_path
from draftwire.types import SamplingParams
from edge_client.drafters.llama import LlamaModel
from edge_client.verifier_process import VerifierProcess

SAMPLINGS = (SamplingParams(), SamplingParams(temperature=0.8, seed=20240607))
LENGTHS = (0, 1, 3, 8, None)  # K; None adapts
RTTS_MS = (0.0, 60.0)
TOKENS, QUICK_TOKENS, QUICK_PROMPTS = 48, 24, 6
SERVE = ("--threads", "1", "--kv-tokens", "8192", "--max-sessions", "16")


def grid(
    prompts: Sequence[Prompt], lengths: Sequence[int | None], rtts_ms: Sequence[float]
) -> list[Case]:
    """Every combination."""
    return [Case(*cell) for cell in product(prompts, SAMPLINGS, lengths, rtts_ms)]


def quick_grid() -> list[Case]:
    """A few prompts of different kinds, and of the round trips one in turn per cell."""
    cells = product(PROMPTS[:QUICK_PROMPTS], SAMPLINGS, LENGTHS)
    return [Case(*cell, RTTS_MS[i % len(RTTS_MS)]) for i, cell in enumerate(cells) if i % 3 == 0]


def _length(text: str) -> int | None:
    return None if text == "adaptive" else int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.identity",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--quick", action="store_true", help="a subset in a minute or two: what `make test` runs"
    )
    parser.add_argument("--model", help="GGUF file on both sides (default: the demo model)")
    parser.add_argument(
        "--prompts", type=int, default=len(PROMPTS), metavar="N", help=f"first N of {len(PROMPTS)}"
    )
    parser.add_argument(
        "--tokens", type=int, help=f"tokens of each text ({TOKENS}, quick {QUICK_TOKENS})"
    )
    parser.add_argument(
        "--k", type=_length, nargs="+", default=LENGTHS, metavar="K", help="numbers or 'adaptive'"
    )
    parser.add_argument(
        "--rtt", type=float, nargs="+", default=RTTS_MS, metavar="MS", help="round trips (0 60)"
    )
    parser.add_argument("--at-once", type=int, default=4, help="texts side by side (4)")
    parser.add_argument("--tie", type=float, default=TIE, help="scores this near are a tie (1e-4)")
    parser.add_argument("--fresh", action="store_true", help="compute the target's texts again")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there, too")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, print and return the exit status."""
    options = _parser().parse_args(argv)
    # Whoever ends this run ends the verifier that it started, too.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    source = options.model or str(demo_model_path())
    prompts = PROMPTS[: options.prompts]
    cases = quick_grid() if options.quick else grid(prompts, options.k, options.rtt)
    reference = Reference(source, cache=None if options.fresh else CACHE)
    model = LlamaModel.load(source)
    say = Progress()
    tokens = options.tokens or (QUICK_TOKENS if options.quick else TOKENS)
    comparison = Comparison(reference, model, tokens=tokens, tie=options.tie, say=say)
    comparison.prepare(cases)
    say(f"starting the verifier for {len(cases)} texts, {options.at_once} at once")
    with VerifierProcess(["--model", source, *SERVE]) as verifier:
        asyncio.run(run_links(comparison, verifier.address, cases, at_once=options.at_once))
    model.close()
    report = comparison.report
    print(f"{model.name}: {len(cases)} cases of {tokens} tokens")
    for difference in report.differences:
        print(difference)
    print(report)
    if options.json:
        result: dict[str, Any] = asdict(report) | {"tie": options.tie, "cases": len(cases)}
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 1 if report.failures or report.runs < len(cases) else 0


if __name__ == "__main__":
    sys.exit(main())
