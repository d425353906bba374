"""What drafting costs beside the bare llama.cpp loop that it is made of.

Two contexts on one model draft the same greedy continuation in turn:

  draft   LlamaDrafter.draft, one token a call, as a session calls it: an event loop, the hop to
          the drafter's thread and back, the decode, the choice of the token and its confidence.
  bare    llama_decode of one token and an argmax over its logits, in a plain loop: what nothing
          built on llama.cpp can go below.

They alternate in rounds of a few tokens, so that noise that lasts longer than a round falls on
both. Times are medians in milliseconds a token; the ratio is the median of the rounds' ratios
draft/bare. With --temperature the drafter samples (position-keyed noise, full-vocabulary
confidence) while the bare loop stays greedy and follows the drafter's tokens. With --check a
ratio above --limit fails. Other processes cost the draft side more than the bare one, since it
waits twice a token for a thread to be woken: believe a ratio only where "others" is small.

With --onnx a third drafts the same in the same rounds: OnnxDrafter with a directory that
`draftwire export-onnx` wrote. Its tokens may differ where its weights were rounded otherwise;
it follows the first drafter's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import psutil  # type: ignore[import-untyped]
from llama_cpp import llama_cpp

from draftwire.testing.demo import demo_model_path
from draftwire.types import SamplingParams
from edge_client.drafters.llama import LlamaDrafter, LlamaModel, default_threads
from edge_client.drafters.onnx import OnnxDrafter, OnnxModel

PROMPT = [{"role": "user", "content": "Explain at length how a sailing boat moves upwind."}]
CONTEXT = 4096


class BareLoop:
    """Decode and argmax, with nothing around it."""

    def __init__(self, model: LlamaModel, threads: int) -> None:
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx, parameters.n_batch, parameters.n_ubatch = CONTEXT, 32, 32
        parameters.n_threads = parameters.n_threads_batch = threads
        parameters.no_perf = True
        self._context = llama_cpp.llama_init_from_model(model.pointer, parameters)
        self._batch = llama_cpp.llama_batch_init(1, 0, 1)
        self._batch.n_tokens = self._batch.n_seq_id[0] = self._batch.logits[0] = 1
        self._batch.seq_id[0][0] = 0
        self._vocabulary = model.vocabulary_size
        self._position = 0

    def next(self, token: int) -> int:
        """Decode `token` and return the likeliest next one."""
        self._batch.token[0] = token
        self._batch.pos[0] = self._position
        if llama_cpp.llama_decode(self._context, self._batch) != 0:
            raise RuntimeError("llama_decode failed")
        self._position += 1
        logits = llama_cpp.llama_get_logits_ith(self._context, 0)
        return int(np.ctypeslib.as_array(logits, (self._vocabulary,)).argmax())

    def close(self) -> None:
        """Free the context."""
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)


class Others:
    """How much of the processors other processes take."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._start = self._now()

    def percent(self) -> float:
        """Share of all processors since the beginning, percent."""
        all_s, busy_s, own_s = (
            now - then for now, then in zip(self._now(), self._start, strict=True)
        )
        return round(100 * max(0.0, busy_s - own_s) / max(all_s, 1e-9), 1)

    def _now(self) -> tuple[float, float, float]:
        times, own = psutil.cpu_times(), self._process.cpu_times()
        total = sum(times[:8])  # the guests' times, which follow, are in the users' already
        idle = times.idle + getattr(times, "iowait", 0.0)
        return total, total - idle, own.user + own.system


async def measure(
    model: LlamaModel,
    threads: int,
    tokens: int,
    block: int,
    temperature: float,
    onnx: OnnxModel | None = None,
) -> dict[str, float | int]:
    """Draft `tokens` tokens in rounds of `block`; medians and their ratio."""
    prompt = model.tokenizer.encode_chat(PROMPT)
    drafter, bare = LlamaDrafter(model, threads=threads, context=CONTEXT), BareLoop(model, threads)
    await drafter.begin(SamplingParams(temperature=temperature, seed=1), prompt)
    first = await drafter.draft(0, prompt)
    assert first is not None
    token = first.token
    for prompted in prompt:
        bare.next(prompted)
    length, ratios, others = len(prompt) + 1, [], Others()
    other = OnnxDrafter(onnx, context=CONTEXT) if onnx is not None else None
    if other is not None:
        await other.begin(SamplingParams(temperature=temperature, seed=1), prompt)
        await other.draft(0, prompt)
    times: dict[str, list[float]] = {"draft": [], "bare": [], "onnx": []}
    agreed = 0
    while len(times["draft"]) < tokens:
        drafted, cost = [token], {"draft": 0.0, "bare": 0.0}
        for _ in range(block):
            start = time.perf_counter()
            proposal = await drafter.draft(length, [])
            times["draft"].append(time.perf_counter() - start)
            cost["draft"] += times["draft"][-1]
            assert proposal is not None
            drafted.append(proposal.token)
            length += 1
        for token in drafted[:-1]:
            start = time.perf_counter()
            bare.next(token)
            times["bare"].append(time.perf_counter() - start)
            cost["bare"] += times["bare"][-1]
        for at, token in enumerate(drafted[:-1] if other else ()):
            assert other is not None
            start = time.perf_counter()
            proposal = await other.draft(length - block + at - 1, [token])
            times["onnx"].append(time.perf_counter() - start)
            agreed += proposal is not None and proposal.token == drafted[at + 1]
        token = drafted[-1]
        ratios.append(cost["draft"] / cost["bare"])
    others_percent = others.percent()
    await drafter.close()
    bare.close()
    if other is not None:
        await other.close()
    draft_ms, bare_ms = (1e3 * statistics.median(times[name]) for name in ("draft", "bare"))
    return {
        "threads": threads,
        "tokens": len(times["draft"]),
        "temperature": temperature,
        "draft_ms": round(draft_ms, 3),
        "bare_ms": round(bare_ms, 3),
        "ratio": round(statistics.median(ratios), 4),
        **_onnx_figures(times["onnx"], agreed),
        "others_percent": others_percent,
    }


def _onnx_figures(times: list[float], agreed: int) -> dict[str, float | int]:
    if not times:
        return {}
    share = round(agreed / len(times), 4)
    return {"onnx_ms": round(1e3 * statistics.median(times), 3), "onnx_agrees": share}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help=".gguf file (default: the demo model)")
    parser.add_argument("--onnx", type=Path, metavar="DIR", help="the same model in ONNX")
    parser.add_argument("--threads", type=int, help="threads of either loop (default: up to 4)")
    parser.add_argument("--tokens", type=int, default=320, help="tokens to draft (320)")
    parser.add_argument("--block", type=int, default=8, help="tokens of a round (8)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (0)")
    parser.add_argument("--limit", type=float, default=1.05, help="largest ratio allowed (1.05)")
    parser.add_argument(
        "--check", action="store_true", help="exit 1 if the ratio exceeds the limit"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there, too")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run from the command line; returns the exit status."""
    args = _parser().parse_args(argv)
    if not 1 <= args.block <= args.tokens <= CONTEXT - 200:
        _parser().error(f"need 1 ≤ block ≤ tokens ≤ {CONTEXT - 200}")
    model = LlamaModel.load(args.model or demo_model_path())
    threads = args.threads or default_threads()
    onnx = OnnxModel.load(args.onnx, threads=threads) if args.onnx else None
    result = asyncio.run(measure(model, threads, args.tokens, args.block, args.temperature, onnx))
    model.close()
    print(
        f"{model.name}, {result['threads']} threads, {result['tokens']} tokens at temperature "
        f"{result['temperature']:g}\n"
        f"  draft {result['draft_ms']:.2f} ms a token, bare {result['bare_ms']:.2f} ms, "
        f"ratio {result['ratio']:.3f} (others {result['others_percent']:g} % of the machine)"
    )
    if onnx is not None:
        print(
            f"  ONNX Runtime ({onnx.path.parent.name}) {result['onnx_ms']:.2f} ms a token; "
            f"{100 * result['onnx_agrees']:.1f} % of its tokens are llama.cpp's"
        )
    if args.json:
        report = {"model": model.name, "machine": platform.machine(), "limit": args.limit} | result
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    if args.check and result["ratio"] > args.limit:
        print(f"the ratio {result['ratio']} exceeds the limit {args.limit}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
