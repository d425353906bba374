"""What choosing tokens costs beside the pass that gave the logits, on a CPU.

One session's round: K drafts, so K + 1 rows of logits, judged by `cloud_verifier.judge`. They are
the demo model's own, of an English text; a larger vocabulary is filled up with copies of them, 8
lower. Cases, each with what it adds to plain greedy decoding:

  noise      temperature 1: position-keyed Gumbel noise over the whole vocabulary
  truncated  the same with top-p 0.95
  penalties  repetition, presence and frequency penalties over a text of --text tokens
  logprobs   each token's own and the 5 likeliest
  grammar    a JSON schema, each row's mask computed in the middle of a string (the widest mask)

`greedy` itself is an argmax a row, which any decoding pays. Times are medians in milliseconds,
rounds interleaved. The share is of a pass of the demo model with as many rows at a context of 512,
measured here as well: a larger vocabulary comes with a larger model, so that for it the share is
an upper bound. With --check, the default parameters of a sampled request (noise) and of a greedy
one exceeding --limit percent at the model's own vocabulary fails.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from pathlib import Path

import torch

from cloud_verifier.hf_target import HFTarget
from cloud_verifier.judge import judge
from cloud_verifier.target import Row
from draftwire.adjust import Adjuster
from draftwire.grammar import GrammarCompiler
from draftwire.testing.demo import demo_model_path
from draftwire.types import Grammar, SamplingParams, StopRules
from edge_client.drafters.llama_model import LlamaModel
from edge_client.text import pieces_of

CONTEXT = 512
PENALISED = SamplingParams(repetition_penalty=1.1, presence_penalty=0.5, frequency_penalty=0.5)
SCHEMA = """{"type": "object", "required": ["text"], "additionalProperties": false,
"properties": {"text": {"type": "string"}, "score": {"type": "integer"}}}"""
BEGUN = '{"text": "It was'  # the output so far
DRAFTED = " a rainy day in the town" * 8
CASES: dict[str, tuple[SamplingParams, int]] = {
    "greedy": (SamplingParams(), 0),
    "noise": (SamplingParams(temperature=1.0, seed=1), 0),
    "truncated": (SamplingParams(temperature=1.0, top_p=0.95, seed=1), 0),
    "penalties": (PENALISED, 0),
    "logprobs": (SamplingParams(), 6),
    "grammar": (SamplingParams(), 0),
}


def _grammar_row(vocab: int, drafts: int, model: LlamaModel) -> Row:
    """A row in the middle of a JSON text; tokens beyond the model's own are new letters' texts."""
    own = pieces_of(model.tokenizer, model.vocabulary_size)
    pieces = own + [f"{at:x}".encode() + piece for at in range(8) for piece in own if piece]
    compiler = GrammarCompiler(pieces[:vocab], model.tokenizer.encode)
    matcher = compiler.compile(Grammar(kind="json_schema", text=SCHEMA))
    begun, drafted = model.tokenizer.encode(BEGUN), model.tokenizer.encode(DRAFTED)
    adjuster = Adjuster(SamplingParams(), start=0, grammar=matcher)
    adjuster.extend(begun)
    tokens = [begun[-1], *drafted[:drafts]]
    return Row(tokens=tokens, start=len(begun) - 1, blocks=(), drafts=drafts, adjuster=adjuster)


def _rows(vocab: int, drafts: int, text: int, model: LlamaModel) -> dict[str, Row]:
    draw = torch.Generator().manual_seed(vocab)
    tokens = torch.randint(vocab, (text + drafts,), generator=draw).tolist()
    rows = {}
    for name, (sampling, logprobs) in CASES.items():
        if name == "grammar":
            rows[name] = _grammar_row(vocab, drafts, model)
            continue
        adjuster = Adjuster.of(sampling, StopRules(), start=text // 2, eos_token_ids=())
        if adjuster is not None:
            adjuster.extend(tokens[:text])
        rows[name] = Row(
            tokens=tokens[text - 1 :],
            start=text - 1,
            blocks=(),
            drafts=drafts,
            sampling=sampling,
            adjuster=adjuster,
            logprobs=logprobs,
        )
    return rows


def _judging_ms(
    logits: torch.Tensor, vocab: int, model: LlamaModel, arguments: argparse.Namespace
) -> dict[str, float]:
    """Median time of each case, ms."""
    copies = -(-vocab // logits.shape[1])
    logits = torch.cat([logits] + [logits - 8.0] * (copies - 1), dim=1)[:, :vocab].contiguous()
    rows = _rows(vocab, arguments.drafts, arguments.text, model)
    times: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(arguments.repeats + 1):
        for name, row in rows.items():
            fresh = logits.clone()  # as a pass leaves them: ours to change
            started = time.perf_counter()
            judge([row], fresh)
            times[name].append((time.perf_counter() - started) * 1e3)
    return {name: statistics.median(each[1:]) for name, each in times.items()}


def _pass(
    target: HFTarget, model: LlamaModel, arguments: argparse.Namespace
) -> tuple[torch.Tensor, float]:
    """Logits of a pass over an English text, [K + 1, vocab], and its median time alone, ms."""
    tokens = (model.tokenizer.encode(__doc__ or "") * CONTEXT)[: CONTEXT + arguments.drafts + 1]
    blocks = range(target.num_blocks)
    target.verify([Row(tokens=tokens[:CONTEXT], start=0, blocks=blocks, judge=False)])
    row = Row(tokens=tokens[CONTEXT:], start=CONTEXT, blocks=blocks, drafts=arguments.drafts)
    times = []
    for _ in range(arguments.repeats + 1):
        started = time.perf_counter()
        logits = target.logits([row])
        times.append((time.perf_counter() - started) * 1e3)
    return logits.float().clone(), statistics.median(times[1:])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--vocabularies", type=int, nargs="+", default=[49152, 151936, 262144], metavar="V"
    )
    parser.add_argument("--drafts", type=int, default=5, help="K (5)")
    parser.add_argument("--text", type=int, default=2048, help="tokens that penalties count (2048)")
    parser.add_argument("--repeats", type=int, default=30, help="rounds per case (30)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (1)")
    parser.add_argument("--limit", type=float, default=5.0, help="percent of a pass allowed (5)")
    parser.add_argument("--check", action="store_true", help="exit 1 above the limit")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there, too")
    return parser


def main() -> int:
    arguments = _parser().parse_args()
    target = HFTarget.load(
        str(demo_model_path()), kv_tokens=1024, device="cpu", threads=arguments.threads
    )
    model = LlamaModel.load(demo_model_path())
    logits, pass_ms = _pass(target, model, arguments)
    own = target.card.vocabulary_size
    target.close()
    print(f"a pass of {arguments.drafts + 1} rows at context {CONTEXT}: {pass_ms:.1f} ms")
    print(f"{'V':>7} " + "".join(f"{name:>20}" for name in CASES))
    results, worst = [], 0.0
    for vocab in arguments.vocabularies:
        times = _judging_ms(logits, vocab, model, arguments)
        shares = {
            name: 100 * (ms - (times["greedy"] if name != "greedy" else 0)) / pass_ms
            for name, ms in times.items()
        }
        if vocab == own:
            worst = max(worst, shares["greedy"] + max(0.0, shares["noise"]))
        cells = (f"{times[name]:.2f} ms ({shares[name]:+.1f} %)" for name in CASES)
        print(f"{vocab:>7} " + "".join(f"{cell:>20}" for cell in cells), flush=True)
        results.append({"vocabulary": vocab, "ms": times, "percent_of_pass": shares})
    model.close()
    if arguments.json:
        facts = {"machine": platform.machine(), "torch": torch.__version__, "pass_ms": pass_ms}
        arguments.json.write_text(json.dumps({**facts, "results": results}, indent=2) + "\n")
    if arguments.check and worst > arguments.limit:
        print(f"choosing takes {worst:.1f} % of a pass, more than {arguments.limit:g} %")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
