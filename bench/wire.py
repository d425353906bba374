"""What a token costs on the wire.

Generates the same texts in each mode over a counted link and prints bytes. Three layers:

  drafts, verdicts  payload of the frames that carry tokens, per committed token
  rest              payload of open, opened and finished, per generation; the open holds the prompt
  socket            everything on the TCP connection, gRPC's and HTTP/2's framing included, per
                    committed token; setting the connection up is apart (last line)

Mode K = 0 is the cloud alone: the device sends credit, the cloud streams its tokens. With --check
the exit status is 1 if drafts and verdicts together take more than --limit bytes per committed
token at K = 5, or if fewer than 0.9 of the drafts were accepted there, so that nothing was shown.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench._prompts import PROMPTS
from draftwire.testing.demo import demo_model_path
from draftwire.testing.link import LinkEmulator, LinkProfile
from edge_client.client import AsyncEdgeClient
from edge_client.drafters.llama import LlamaDrafter, LlamaModel
from edge_client.verifier_process import VerifierProcess

LENGTHS = (0, 1, 3, 5, 8, 16, None)  # K; None adapts
CHECKED, LEAST_ALPHA, LIMIT_BYTES = 5, 0.9, 16.0
PROMPT_NAMES = ("bicycle", "letter", "german", "python", "colours")
SERVE = ("--threads", "1", "--kv-tokens", "4096", "--max-sessions", "4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Bytes of some generations in one mode. `k` None adapts; `alpha` is over judged drafts."""

    k: int | None
    generations: int
    tokens: int
    passes: int
    alpha: float
    drafts_up: int
    verdicts_down: int
    rest_up: int
    rest_down: int
    socket_up: int
    socket_down: int
    connection_up: int
    connection_down: int

    @property
    def payload(self) -> float:
        """Drafts and verdicts, both directions, bytes per committed token."""
        return (self.drafts_up + self.verdicts_down) / self.tokens

    def cells(self) -> list[str]:
        """A row of the table."""
        tokens, runs = self.tokens, self.generations
        return [
            "adaptive" if self.k is None else str(self.k),
            f"{self.alpha:.2f}" if self.k != 0 else "",
            f"{tokens / self.passes:.2f}",
            *(f"{n / tokens:.1f}" for n in (self.drafts_up, self.verdicts_down)),
            f"{self.payload:.1f}",
            *(f"{n / runs:.0f}" for n in (self.rest_up, self.rest_down)),
            *(f"{n / tokens:.1f}" for n in (self.socket_up, self.socket_down)),
        ]


HEAD = ["K", "α", "τ", "drafts", "verdicts", "sum", "rest up", "down", "socket up", "down"]


async def measure(
    verifier: str,
    model: LlamaModel,
    k: int | None,
    *,
    tokens: int = 64,
    rtt_ms: float = 0.0,
    names: Sequence[str] = PROMPT_NAMES,
) -> Cost:
    """Generate after each prompt in turn, greedily, over a link and a connection of its own."""
    prompts = [prompt for prompt in PROMPTS if prompt.name in names]
    runs = []
    drafter = LlamaDrafter(model, threads=1, context=1024)
    async with (
        LinkEmulator(verifier, LinkProfile(rtt_ms=rtt_ms)) as link,
        AsyncEdgeClient(link.address, model.tokenizer, [drafter]) as client,
    ):
        await client.card()
        connection = link.bytes_up, link.bytes_down
        for prompt in prompts:
            stream = client.generate(
                prompt.tokens(client.tokenizer),
                max_tokens=tokens,
                num_draft_tokens=k,
            )
            await stream.read()
            runs.append(stream.summary)
        total = link.bytes_up, link.bytes_down
    judged = sum(run.usage.drafted for run in runs)
    return Cost(
        k=k,
        generations=len(runs),
        tokens=sum(len(run.token_ids) for run in runs),
        passes=sum(run.rounds for run in runs),
        alpha=sum(run.usage.accepted for run in runs) / max(1, judged),
        drafts_up=sum(run.bytes.drafts_up for run in runs),
        verdicts_down=sum(run.bytes.verdicts_down for run in runs),
        rest_up=sum(run.bytes.other_up for run in runs),
        rest_down=sum(run.bytes.other_down for run in runs),
        socket_up=total[0] - connection[0],
        socket_down=total[1] - connection[1],
        connection_up=connection[0],
        connection_down=connection[1],
    )


def fault(cost: Cost, limit: float = LIMIT_BYTES) -> str | None:
    """Why this measurement does not show the limit kept; None if it does."""
    if cost.alpha < LEAST_ALPHA:
        return f"only {cost.alpha:.2f} of the drafts were accepted: nothing is shown"
    if cost.payload > limit:
        return f"{cost.payload:.1f} bytes of drafts and verdicts a token, above {limit:g}"
    return None


def _length(text: str) -> int | None:
    return None if text == "adaptive" else int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.wire",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", help="GGUF file on both sides (default: the demo model)")
    parser.add_argument(
        "--k", type=_length, nargs="+", default=LENGTHS, metavar="K", help="numbers or 'adaptive'"
    )
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each text, at most (64)")
    parser.add_argument(
        "--rtt", type=float, default=20.0, metavar="MS", help="round trip, which adapting sees (20)"
    )
    parser.add_argument(
        "--limit", type=float, default=LIMIT_BYTES, metavar="BYTES", help="of --check (16)"
    )
    parser.add_argument("--check", action="store_true", help="exit 1 if the limit isn't kept")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there, too")
    return parser


def _print_row(cells: Sequence[str]) -> None:
    print("  ".join(f"{cell:>9}" for cell in cells), flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and return the exit status."""
    options = _parser().parse_args(argv)
    # Whoever ends this run ends the verifier that it started, too.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    lengths = list(options.k)
    if options.check and CHECKED not in lengths:
        lengths.append(CHECKED)
    source = options.model or str(demo_model_path())
    model = LlamaModel.load(source)
    print(f"{model.name}, greedy, {len(PROMPT_NAMES)} texts of up to {options.tokens} tokens\n")
    _print_row(HEAD)
    costs = []
    with VerifierProcess(["--model", source, *SERVE]) as verifier, asyncio.Runner() as runner:
        for k in lengths:
            work = measure(verifier.address, model, k, tokens=options.tokens, rtt_ms=options.rtt)
            costs.append(runner.run(work))
            _print_row(costs[-1].cells())
    model.close()
    print(f"\nbytes; connection: {costs[-1].connection_up} up, {costs[-1].connection_down} down")
    if options.json:
        rows = [asdict(cost) | {"payload_per_token": round(cost.payload, 3)} for cost in costs]
        report = {"benchmark": "wire", "model": model.name, "rtt_ms": options.rtt, "modes": rows}
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    checked = next((cost for cost in costs if cost.k == CHECKED), None)
    if options.check and checked and (why := fault(checked, options.limit)):
        print(f"K = {CHECKED}: {why}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
