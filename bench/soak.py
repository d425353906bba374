"""Does the verifier stay itself under many sessions that come and go?

64 devices (--sessions) behind eight links use one verifier process over gRPC for ten minutes
(--minutes). Each generates again and again: one of a fixed set of prompts, begun anew or with part
of its text already there, greedy or with a seed, with random K (drafts are the known text, 15 % of
it replaced), in a session of its own or in the last one. It reads to the end, cancels, walks away,
vanishes without a word or sends nonsense; the links are cut, on average every 15 seconds each, and
generations go on on new ones. KV is short (--kv-tokens), so that sessions wait for it, or lose
theirs to others.

Exit status 0 if
  - every text is, as far as it was read, what the target says alone: in transformers as it ships
    (see bench/_reference.py; a true tie is excused and counted), or the table model itself;
  - nothing failed but what was to fail;
  - resident memory of the verifier stayed within 3 % over the second half, of up to five minutes;
  - afterwards no generation is in flight, and when the sessions' time to live is over none is
    kept, and all KV blocks are free, as the verifier's metrics have it.

  make bench-soak
  make bench-soak ARGS="--target table --minutes 1"
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench._oracle import DemoOracle, Oracle, TableOracle
from bench._progress import Progress
from bench._soak_devices import Outcomes, Site
from bench._vitals import Memory, scrape
from edge_client.verifier_process import VerifierProcess

SITES = 8
TTL_S = 2.0
MOST_SPREAD, LONGEST_LOOK_S = 0.03, 300.0
KV_TOKENS = {"real": 4096, "table": 2048}
MOST_FAULTS = 50  # after which there is no use in going on
LEFT = (
    *("num_requests_running", "num_requests_waiting", "sessions_idle"),
    *("kv_cache_blocks{held}", "kv_cache_blocks{cached}"),
)
_METRICS_ON = re.compile(r"metrics on http://(\S+)/metrics")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a soak came to. Memory in bytes; `left` are metrics after everyone has gone."""

    target: str
    sessions: int
    seconds: float
    outcomes: Outcomes
    memory: list[tuple[float, int]]
    memory_spread: float
    metrics: dict[str, float]
    left: dict[str, float]

    def faults(self, most_spread: float | None = MOST_SPREAD) -> list[str]:
        """What is not as it should be; with None memory may grow."""
        outcomes = self.outcomes
        found = [*outcomes.differences, *outcomes.errors]
        found += [f"{name} is {value:g} at the end" for name, value in self.left.items() if value]
        if most_spread is not None and self.memory_spread > most_spread:
            found.append(f"resident memory moved by {self.memory_spread:.1%}")
        if outcomes.ends["finish"] < self.sessions:
            found.append(f"only {outcomes.ends['finish']} texts: nothing is shown")
        return found

    def __str__(self) -> str:
        outcomes, sizes = self.outcomes, [size / 1e6 for _, size in self.memory]
        return (
            f"{self.target}, {self.sessions} devices, {self.seconds:.0f} s: "
            f"{outcomes.tokens} tokens, {outcomes.accepted} of {outcomes.drafted} drafts held\n"
            f"generations: {', '.join(f'{n} {way}' for way, n in outcomes.ends.items())}\n"
            f"{outcomes.cuts} cuts, {outcomes.reopened} generations went on on another stream, "
            f"{self.metrics.get('num_preemptions_total', 0):.0f} preemptions, "
            f"{self.metrics.get('kv_block_evictions_total', 0):.0f} cached blocks given away\n"
            f"{len(outcomes.differences)} differences, {outcomes.ties} ties excused, "
            f"{len(outcomes.errors)} errors\n"
            f"resident memory {sizes[0]:.0f} MB at first, {min(sizes):.0f} to {max(sizes):.0f}, "
            f"{sizes[-1]:.0f} at last; {self.memory_spread:.2%} apart in the second half"
        )


class SoakedVerifier(VerifierProcess):
    """A verifier with metrics, at `metrics`."""

    def __init__(self, model: str, *, sessions: int, kv_tokens: int) -> None:
        self.metrics = ""
        arguments = {
            "--model": model,
            "--threads": 1,
            "--max-sessions": 2 * sessions,  # a cut stream's session may still be there
            "--kv-tokens": kv_tokens,
            "--session-ttl": TTL_S,
            "--metrics": "127.0.0.1:0",
        }
        flat = [str(part) for pair in arguments.items() for part in pair]
        super().__init__(flat, progress=self._hear)

    def _hear(self, line: str) -> None:
        if found := _METRICS_ON.search(line):
            self.metrics = found[1]


async def soak(
    verifier: SoakedVerifier,
    oracle: Oracle,
    *,
    sessions: int,
    seconds: float,
    seed: int = 0,
    say: Callable[[str], None] = lambda line: None,  # noqa: ARG005
) -> Record:
    """Use a verifier for so long, then wait until it has forgotten everyone."""
    outcomes, memory, started = Outcomes(), Memory(), time.monotonic()
    shares = [sessions // SITES + (i < sessions % SITES) for i in range(SITES)]
    sites = [Site(verifier.address, oracle, n, seed + 100 * i) for i, n in enumerate(shares) if n]

    def over() -> bool:
        failing = len(outcomes.errors) + len(outcomes.differences) > MOST_FAULTS
        return failing or time.monotonic() - started >= seconds

    async def tell() -> None:
        while True:
            await asyncio.sleep(1)
            say(
                f"soak: {time.monotonic() - started:.0f} of {seconds:.0f} s, "
                f"{sum(outcomes.ends.values())} generations, "
                f"{len(outcomes.differences)} differences, {len(outcomes.errors)} errors, "
                f"{memory.samples[-1][1] / 1e6:.0f} MB"
            )

    async with asyncio.TaskGroup() as group:
        watching = [
            group.create_task(memory.watch(verifier.process.pid)),
            group.create_task(tell()),
        ]
        async with asyncio.TaskGroup() as devices:
            for site in sites:
                devices.create_task(site.run(outcomes, over))
        took = time.monotonic() - started
        say("waiting for the verifier to forget everyone")
        values = await asyncio.to_thread(scrape, verifier.metrics)
        left = await _left(verifier.metrics)
        for task in watching:
            task.cancel()
    look_s = min(took / 2, LONGEST_LOOK_S)
    return Record(
        target=Path(oracle.model).stem,
        sessions=sessions,
        seconds=took,
        outcomes=outcomes,
        memory=memory.samples,
        memory_spread=memory.spread(took - look_s),
        metrics=values,
        left=left,
    )


async def _left(metrics: str) -> dict[str, float]:
    """What is in flight, kept or taken after the sessions' time to live."""
    deadline = time.monotonic() + 4 * TTL_S
    while True:
        values = await asyncio.to_thread(scrape, metrics)
        left = {name: values[name] for name in LEFT}
        if not any(left.values()) or time.monotonic() > deadline:
            return left
        await asyncio.sleep(0.5)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (10)")
    parser.add_argument("--sessions", type=int, default=64, metavar="N", help="devices (64)")
    parser.add_argument(
        "--target", choices=list(KV_TOKENS), default="real", help="the demo model, or a toy"
    )
    parser.add_argument("--kv-tokens", type=int, metavar="N", help="KV memory of the verifier")
    parser.add_argument("--seed", type=int, default=0, help="of what devices do (0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record there, too")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Soak, print and return the exit status."""
    options = _parser().parse_args(argv)
    # Whoever ends this run ends the verifier that it started, too.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    logging.getLogger("edge_client").setLevel(logging.ERROR)  # of streams that are cut on purpose
    say = Progress(every_s=10.0)
    oracle: Oracle = TableOracle() if options.target == "table" else DemoOracle(say)
    kv_tokens = options.kv_tokens or KV_TOKENS[options.target]
    say("starting the verifier")
    verifier = SoakedVerifier(oracle.model, sessions=options.sessions, kv_tokens=kv_tokens)
    with verifier:
        record = asyncio.run(
            soak(
                verifier,
                oracle,
                sessions=options.sessions,
                seconds=60 * options.minutes,
                seed=options.seed,
                say=say,
            )
        )
    oracle.close()
    print(record)
    faults = record.faults()
    for line in faults[:20]:
        print(line, file=sys.stderr)
    if options.json:
        result = asdict(record) | {"faults": faults}
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
