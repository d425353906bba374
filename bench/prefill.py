"""Long prompts beside others: what they cost whoever shares the verifier, and what is shared.

A real verifier process, gRPC over loopback.

Beside: a device drafts K = 4 of a known text, one token in ten replaced, over and over; then a
prompt of 4,000 tokens comes from another. For each round of the device, by the verifier's own
clock: how long it waited for a pass, and that and the pass together. With --check the exit status
is 1 if, while the prompt is read, the wait is longer than twice the usual pass at the 95th
percentile.

Shared: a device that drafts with the demo model asks a question after a prefix of 1,500 tokens;
another device, another question after the same prefix; the first device, its question once more in
a session of its own. With --check
the exit status is 1 if the time to the second's first token is not under a quarter of the first's,
or if the third's text, or how many of its drafts were accepted, is not the first's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench._known_text import KnownText, KnownTextDrafter
from bench._progress import Progress
from bench._prompts import inventory
from bench._reference import Reference
from draftwire.testing.demo import demo_model_path
from draftwire.types import SamplingParams, StopRules, Tokens
from edge_client.client import AsyncEdgeClient
from edge_client.drafters.llama import LlamaDrafter, LlamaModel
from edge_client.plan import FixedController, Plan, Round
from edge_client.request import Request
from edge_client.results import Summary
from edge_client.session import Session
from edge_client.transport import GrpcTransport
from edge_client.verifier_process import VerifierProcess

PROMPT_TOKENS, PREFIX_TOKENS, QUICK_PROMPT_TOKENS = 4000, 1500, 1000
K, SHARE_WRONG, ROUNDS = 4, 0.1, 60
LONGEST_WAIT, LARGEST_SHARE = 2.0, 0.25
SERVE = ("--threads", "1", "--kv-tokens", "8192")
QUESTIONS = ("Which shelf holds the most candles?", "What was counted last?")


class Listener(FixedController):
    """Always drafts K tokens, and keeps the rounds, but for those that read a prompt."""

    def __init__(self, k: int) -> None:
        super().__init__(Plan.fixed(k))
        self.rounds: list[Round] = []

    def judged(self, outcome: Round) -> None:
        """Keep a round."""
        if not outcome.first:
            self.rounds.append(outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Rounds of a device alone and while a prompt is read; times in ms."""

    prompt_tokens: int
    prompt_ms: float
    usual_rounds: int
    usual_pass_ms: float
    usual_pass_p95_ms: float
    rounds: int
    wait_median_ms: float
    wait_p95_ms: float
    total_median_ms: float
    total_p95_ms: float

    @property
    def ratio(self) -> float:
        """The wait's 95th percentile in usual passes."""
        return self.wait_p95_ms / self.usual_pass_ms

    @property
    def total_ratio(self) -> float:
        """The same of wait and pass together."""
        return self.total_p95_ms / self.usual_pass_ms

    def __str__(self) -> str:
        return (
            f"usual pass {self.usual_pass_ms:.0f} ms (95th percentile {self.usual_pass_p95_ms:.0f})"
            f", {self.usual_rounds} rounds\n"
            f"beside a prompt of {self.prompt_tokens} tokens, read in {self.prompt_ms / 1e3:.1f} s,"
            f" {self.rounds} rounds:\n"
            f"  wait            median {self.wait_median_ms:.0f} ms, 95th percentile "
            f"{self.wait_p95_ms:.0f} ms: {self.ratio:.2f} usual passes\n"
            f"  wait and pass   median {self.total_median_ms:.0f} ms, 95th percentile "
            f"{self.total_p95_ms:.0f} ms: {self.total_ratio:.2f} usual passes"
        )


async def beside(verifier: str, device: KnownText, prompt: Tokens, model: LlamaModel) -> Beside:
    """Measure a device's rounds alone, then while another's prompt is read."""
    listener, transport = Listener(K), GrpcTransport(verifier)
    session = Session(
        transport,
        await transport.describe(),
        fingerprint=model.tokenizer.fingerprint,
        drafter=KnownTextDrafter([device], wrong=SHARE_WRONG),
    )

    async def text() -> None:
        stop = StopRules(max_tokens=len(device.text), ignore_eos=True)
        request = Request(sampling=device.sampling, stop=stop)
        generation = session.generate(device.prompt, listener, request)
        async for _ in generation.run():
            pass
        if session.tokens != device.whole:
            raise AssertionError("the device's text is not the target's own")

    async with AsyncEdgeClient(transport, model.tokenizer) as client:
        while len(listener.rounds) < ROUNDS:
            await text()
        usual, listener.rounds = listener.rounds, []
        stream = client.generate(prompt, max_tokens=1)
        reading = asyncio.create_task(stream.read())
        rounds: list[Round] = []
        reading.add_done_callback(lambda _: rounds.extend(listener.rounds))
        while not reading.done():
            await text()
        await reading
    passes = sorted(1e3 * r.pass_s for r in usual)
    waits = sorted(1e3 * r.queue_s for r in rounds)
    totals = sorted(1e3 * (r.queue_s + r.pass_s) for r in rounds)
    return Beside(
        prompt_tokens=len(prompt),
        prompt_ms=stream.summary.ttft_ms,
        usual_rounds=len(usual),
        usual_pass_ms=statistics.median(passes),
        usual_pass_p95_ms=_p95(passes),
        rounds=len(rounds),
        wait_median_ms=statistics.median(waits),
        wait_p95_ms=_p95(waits),
        total_median_ms=statistics.median(totals),
        total_p95_ms=_p95(totals),
    )


def _p95(values: Sequence[float]) -> float:
    return values[-(-95 * len(values) // 100) - 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Three sessions with one prefix: times to the first token in ms, what was cached and held."""

    prefix_tokens: int
    ttft_ms: tuple[float, ...]
    cached: tuple[int, ...]
    alpha: tuple[float, ...]
    accepted: tuple[int, ...]
    drafted: tuple[int, ...]
    same_text: bool

    @property
    def ratio(self) -> float:
        """The second's time to its first token over the first's."""
        return self.ttft_ms[1] / self.ttft_ms[0]

    def __str__(self) -> str:
        names = ("first", "other question", "first again")
        lines = [
            f"  {name:<15} first token after {ttft:.0f} ms, {cached} tokens cached, α {alpha:.2f}"
            for name, ttft, cached, alpha in zip(
                names, self.ttft_ms, self.cached, self.alpha, strict=True
            )
        ]
        return "\n".join([f"a shared prefix of {self.prefix_tokens} tokens:", *lines])


async def shared(
    verifier: str, model: LlamaModel, *, prefix_tokens: int = PREFIX_TOKENS, tokens: int = 24
) -> Shared:
    """Generate after one prefix in three sessions, on two devices in turn."""
    encode = model.tokenizer.encode
    prefix = encode(f"Of another store.\n\n{inventory(prefix_tokens // 16)}")[:prefix_tokens]
    questions = [encode(f"\n\n{question} ") for question in QUESTIONS]
    context = prefix_tokens + 256
    drafters = [LlamaDrafter(model, threads=1, context=context) for _ in range(2)]
    runs: list[Summary] = []
    async with AsyncEdgeClient(verifier, model.tokenizer, drafters) as client:
        await client.card()
        for question in (questions[0], questions[1], questions[0]):
            stream = client.generate(
                [*prefix, *question], max_tokens=tokens, ignore_eos=True, num_draft_tokens=K
            )
            await stream.read()
            runs.append(stream.summary)
    return Shared(
        prefix_tokens=len(prefix),
        ttft_ms=tuple(run.ttft_ms for run in runs),
        cached=tuple(run.usage.cached_tokens for run in runs),
        alpha=tuple(run.alpha for run in runs),
        accepted=tuple(run.accepted for run in runs),
        drafted=tuple(run.drafted for run in runs),
        same_text=runs[0].token_ids == runs[2].token_ids,
    )


def faults(beside: Beside, shared: Shared) -> list[str]:
    """The limits that these figures do not keep."""
    found = []
    if beside.ratio > LONGEST_WAIT:
        found.append(f"a round waits {beside.ratio:.2f} usual passes, above {LONGEST_WAIT:g}")
    if shared.ratio >= LARGEST_SHARE:
        found.append(f"the second's first token takes {shared.ratio:.0%} of the first's time")
    if not shared.same_text or shared.accepted[0] != shared.accepted[2]:
        found.append("the same prompt again did not go the same way")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.prefill",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--prompt", type=int, default=PROMPT_TOKENS, metavar="TOKENS")
    parser.add_argument("--prefix", type=int, default=PREFIX_TOKENS, metavar="TOKENS")
    parser.add_argument("--quick", action="store_true", help="a prompt of 1,000 tokens")
    parser.add_argument("--check", action="store_true", help="exit 1 if a limit isn't kept")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there, too")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and return the exit status."""
    options = _parser().parse_args(argv)
    # Whoever ends this run ends the verifier that it started, too.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    say, source = Progress(), str(demo_model_path())
    model = LlamaModel.load(source)
    encode = model.tokenizer.encode
    length = QUICK_PROMPT_TOKENS if options.quick else options.prompt
    prompt = encode(inventory(length // 16))[:length]
    known, sampling = encode("Once upon a time, in a village"), SamplingParams()
    say("the device's text, from the target alone")
    text = Reference(source).text(known, sampling, 96, ends=False)
    device = KnownText(tuple(known), tuple(best.first for best in text), sampling)
    with VerifierProcess(["--model", source, *SERVE]) as verifier, asyncio.Runner() as runner:
        say(f"rounds beside a prompt of {len(prompt)} tokens")
        rounds = runner.run(beside(verifier.address, device, prompt, model))
        print(rounds, flush=True)
        say("sessions that share a prefix")
        sessions = runner.run(shared(verifier.address, model, prefix_tokens=options.prefix))
        print(sessions)
    model.close()
    missed = faults(rounds, sessions)
    if options.json:
        report: dict[str, Any] = {
            "benchmark": "prefill",
            "model": model.name,
            "k": K,
            "share_wrong": SHARE_WRONG,
            "beside": asdict(rounds) | {"ratio": rounds.ratio, "total_ratio": rounds.total_ratio},
            "shared": asdict(sessions) | {"ratio": sessions.ratio},
            "missed": missed,
        }
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    for line in missed:
        print(line, file=sys.stderr)
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
