"""How much faster an edit comes when most of its text is predicted.

The task is a rename in code. A model as small as the demo's does none on request, so that it is
posed the other way round: what the target writes greedily, asked for a class, stands for the text
after the rename, and the prediction is that text with other identifiers (every occurrence of each),
until no more than --agreement of its tokens are the same. What counts is the same: a prediction
that agrees with the target's own text so far, and differs where names stand. Each repeat renames
others, chosen by --seed and its number.

Ways, interleaved within each repeat, from one verifier process over loopback:

  alone        the cloud decodes by itself
  predicted    the prediction, and no draft model
  with drafts  the prediction, and the draft model where it does not hold

Each text must be the same tokens. Ratios are medians over repeats of a pair's times, so that noise
that lasts longer than a repeat falls on both sides; the first token's prefill is counted in.
With --check other tokens fail, and so does a ratio of `predicted` below --limit.
"""

from __future__ import annotations

import argparse
import asyncio
import builtins
import json
import keyword
import platform
import random
import re
import statistics
import sys
import time
from collections.abc import Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from draftwire.testing.demo import demo_model_path
from edge_client.client import AsyncEdgeClient
from edge_client.drafters.llama import LlamaDrafter, LlamaModel
from edge_client.results import Summary
from edge_client.verifier_process import VerifierProcess

QUESTION = "Write a Python class BankAccount with methods deposit, withdraw and transfer."
BEFORE = (
    "ledger_entry",
    "holder",
    "cents",
    "opening_sum",
    "client_id",
    "credit_line",
    "stash",
    "owed",
)
"""Names before the rename."""

WAYS = ("alone", "predicted", "with drafts")


def renamed(text: str, model: LlamaModel, agreement: float, seed: int) -> tuple[str, float]:
    """The text before identifiers were renamed, and the share of its tokens that is the same."""
    words = set(re.findall(r"\b[a-z][a-z_]{3,}\b", text))
    names = sorted(words - {"self", *keyword.kwlist, *dir(builtins)})
    random.Random(seed).shuffle(names)
    own, before = model.tokenizer.encode(text), list(BEFORE)
    out, share = text, 1.0
    for name in names:
        changed = re.sub(rf"\b{name}\b", before[-1], out)
        left = _share(own, model.tokenizer.encode(changed))
        # One that is everywhere changes more than is to be changed, one in prose hardly anything.
        if share > agreement and share - 0.01 > left >= agreement - 0.01:
            out, share = changed, left
            before.pop()
    return out, share


def _share(own: Sequence[int], other: Sequence[int]) -> float:
    matched = SequenceMatcher(None, own, other, autojunk=False).get_matching_blocks()
    return sum(block.size for block in matched) / max(len(own), len(other))


async def measure(address: str, model: LlamaModel, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run all ways; seconds of each, the agreement, and how many texts differ."""
    drafter = LlamaDrafter(model, threads=arguments.threads, context=2048)
    prompt = model.tokenizer.encode_chat([{"role": "user", "content": QUESTION}])
    options: dict[str, Any] = {"max_tokens": arguments.tokens}
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    passes: dict[str, list[int]] = {way: [] for way in WAYS}
    agreement: list[float] = []
    different = 0
    async with (
        AsyncEdgeClient(address, model.tokenizer) as bare,
        AsyncEdgeClient(address, model.tokenizer, [drafter]) as drafting,
    ):
        whole = await _read(bare, prompt, num_draft_tokens=0, **options)
        for repeat in range(arguments.repeats):
            prediction, share = renamed(
                whole.text, model, arguments.agreement, arguments.seed + repeat
            )
            agreement.append(round(share, 3))
            expected = model.tokenizer.encode(prediction)
            ways: dict[str, tuple[AsyncEdgeClient, dict[str, Any]]] = {
                "alone": (bare, {"num_draft_tokens": 0}),
                "predicted": (bare, {"prediction": expected}),
                "with drafts": (drafting, {"prediction": expected}),
            }
            for way, (client, how) in ways.items():
                started = time.perf_counter()
                summary = await _read(client, prompt, **how, **options)
                seconds[way].append(time.perf_counter() - started)
                passes[way].append(summary.usage.passes)
                different += summary.token_ids != whole.token_ids
    return {
        "tokens": len(whole.token_ids),
        "agreement": agreement,
        "seconds": seconds,
        "passes": passes,
        "different": different,
        "prediction": prediction,
    }


async def _read(client: AsyncEdgeClient, prompt: Sequence[int], **options: Any) -> Summary:
    stream = client.generate(prompt, **options)
    await stream.read()
    return stream.summary


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=200, help="tokens of the text (200)")
    parser.add_argument(
        "--agreement", type=float, default=0.9, help="share of tokens predicted (0.9)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the choice of names (1)")
    parser.add_argument("--repeats", type=int, default=5, help="times each way is run (5)")
    parser.add_argument("--threads", type=int, default=1, help="threads of either side (1)")
    parser.add_argument("--limit", type=float, default=3.0, help="least ratio allowed (3)")
    parser.add_argument("--check", action="store_true", help="exit 1 below the limit")
    parser.add_argument("--show", action="store_true", help="print the prediction")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there, too")
    return parser


def main() -> int:
    """Run from the command line; returns the exit status."""
    arguments = _parser().parse_args()
    model = LlamaModel.load(demo_model_path())
    serve = ["--model", str(demo_model_path()), "--threads", str(arguments.threads)]
    with VerifierProcess(serve) as verifier:
        result = asyncio.run(measure(verifier.address, model, arguments))
    model.close()
    alone = result["seconds"]["alone"]
    ratios = {
        way: statistics.median(a / b for a, b in zip(alone, times, strict=True))
        for way, times in result["seconds"].items()
    }
    if arguments.show:
        print(result["prediction"])
    print(
        f"{result['tokens']} tokens, {100 * statistics.mean(result['agreement']):.0f} % predicted, "
        f"{arguments.repeats} repeats"
    )
    for way, ratio in ratios.items():
        times = statistics.median(result["seconds"][way])
        speed = result["tokens"] / times
        passes = statistics.median(result["passes"][way])
        print(f"  {way:<12} {speed:6.1f} tokens/s  {ratio:5.2f}x  {passes:g} passes")
    if arguments.json:
        report = {"machine": platform.machine(), "ratios": ratios, **result}
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    if result["different"]:
        print(f"{result['different']} texts differ", file=sys.stderr)
    slow = ratios["predicted"] < arguments.limit
    if slow:
        print(f"{ratios['predicted']:.2f}x is below {arguments.limit:g}x", file=sys.stderr)
    return int(arguments.check and bool(slow or result["different"]))


if __name__ == "__main__":
    sys.exit(main())
