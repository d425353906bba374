"""What hostile peers cost those who behave.

Well-behaved sessions generate on a verifier, undisturbed and beside each attack in turn, and their
speeds are compared:

  slow reader        sixteen streams that ask for all they may have and read nothing
  silent opener      eight connections of a hundred streams that send nothing
  frame flood        eight streams of frames that change nothing, sent as fast as they are taken
  refused opener     eight connections that open what must be refused, again and again
  connection opener  ten thousand connections that never begin a stream, made again when closed

The verifier runs a toy model whose passes take --pass-ms (it sleeps, as a processor does that waits
for its GPU), in this process with its devices; the attacker in another, on a core of its own.
Each figure is the median of paired windows: an attack's, and the quiet one before it, in which a
process that only computes takes the attacker's place. With --check the exit status is 1 if a ratio
is below --limit, or a text was not the target's own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import AsyncIterator, Collection, Sequence
from pathlib import Path

from bench._attackers import ATTACKS
from cloud_verifier.engine import Engine
from cloud_verifier.server import VerifierServer
from cloud_verifier.table_target import TableTarget
from cloud_verifier.tally import Tally
from cloud_verifier.target import Judgement, Row
from draftwire.testing.table import TableModel, TableTokenizer
from draftwire.types import ServingLimits
from edge_client.client import AsyncEdgeClient
from edge_client.drafters.table import TableDrafter

NAMES = (*ATTACKS, "connection opener")
MODEL = TableModel(vocabulary_size=320, eos_rate=0.0)
TOKENIZER = TableTokenizer(320)


class TimedTarget(TableTarget):
    """A pass takes as long as it says, and leaves the processor to others meanwhile."""

    def __init__(self, pass_s: float) -> None:
        super().__init__(MODEL, limits=ServingLimits(max_context=4096), num_blocks=8192)
        self._pass_s = pass_s

    def verify(self, rows: Sequence[Row]) -> list[Judgement | None]:
        time.sleep(self._pass_s)
        return super().verify(rows)


class Devices:
    """Well-behaved devices, which generate one text after another and count the tokens."""

    def __init__(self, address: str, count: int) -> None:
        self.tokens = 0
        self.failures: list[str] = []
        self._address = address
        self._count = count

    async def run(self) -> None:
        """Generate until cancelled."""
        await asyncio.gather(*(self._one(index) for index in range(self._count)))

    async def _one(self, index: int) -> None:
        drafter = TableDrafter(MODEL.perturbed(0.2, seed=index))
        async with AsyncEdgeClient(self._address, TOKENIZER, [drafter]) as client:
            for text in range(1_000_000):
                prompt = TOKENIZER.encode(f"device {index} asks {text}")
                stream = client.generate(prompt, max_tokens=100, num_draft_tokens=4)
                said: list[int] = []
                async for delta in stream:
                    self.tokens += len(delta.tokens)
                    said += [token.id for token in delta.tokens]
                if said != MODEL.generate(prompt, 100):
                    self.failures.append(f"device {index}, text {text}")

    async def speed(self, seconds: float) -> float:
        """Tokens per second of them all, over a window."""
        before, started = self.tokens, time.perf_counter()
        await asyncio.sleep(seconds)
        return (self.tokens - before) / (time.perf_counter() - started)


@contextlib.asynccontextmanager
async def attacker(name: str, address: str, cores: Collection[int]) -> AsyncIterator[None]:
    """That attack, under way."""
    fingerprint = TOKENIZER.fingerprint.hex()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench._attackers", name, address, fingerprint),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    if cores:
        os.sched_setaffinity(process.pid, cores)
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"begun\n"
        yield
        assert process.returncode is None, f"the attacker ended: {name}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def measure(options: argparse.Namespace, cores: Collection[int]) -> list[dict[str, object]]:
    """A row for each attack."""
    tally = Tally()
    engine = Engine(TimedTarget(options.pass_ms / 1e3), observer=tally)
    rows: list[dict[str, object]] = []
    async with VerifierServer(engine, "127.0.0.1:0", grace_s=0.0) as server:
        devices = Devices(server.address, options.devices)
        running = asyncio.create_task(devices.run())
        await devices.speed(1.0)
        for name in options.attacks:
            pairs = []
            before = tally.errors.copy()
            for _ in range(options.repeats):
                speeds = []
                for whom in ("nobody", name):
                    async with attacker(whom, server.address, cores):
                        await asyncio.sleep(0.5)
                        speeds.append(await devices.speed(options.seconds))
                pairs.append((speeds[0], speeds[1]))
            assert not running.done(), running.exception()
            rows.append(
                {
                    "attack": name,
                    "quiet_tokens_per_s": statistics.median(quiet for quiet, _ in pairs),
                    "attacked_tokens_per_s": statistics.median(under for _, under in pairs),
                    "ratio": statistics.median(under / quiet for quiet, under in pairs),
                    "refused": dict(tally.errors - before),
                    "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                    "wrong_texts": devices.failures,
                }
            )
            show(rows[-1])
        running.cancel()
        await asyncio.wait([running])
    return rows


def show(row: dict[str, object]) -> None:
    """Print a row."""
    refused = ", ".join(f"{code} {count}" for code, count in dict(row["refused"]).items())  # type: ignore[call-overload]
    figures = (
        f"{row['quiet_tokens_per_s']:>9.1f} {row['attacked_tokens_per_s']:>9.1f} "
        f"{row['ratio']:>6.2f} {row['memory_mb']:>8.0f}"
    )
    print(f"{row['attack']:<18} {figures}  {refused or '-'}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--attacks", nargs="+", choices=NAMES, default=NAMES, metavar="NAME", help="which (all)"
    )
    parser.add_argument("--devices", type=int, default=4, help="well-behaved sessions (4)")
    parser.add_argument("--pass-ms", type=float, default=20.0, help="a pass of the target (20)")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a window (3)")
    parser.add_argument("--repeats", type=int, default=3, help="pairs of windows (3)")
    parser.add_argument("--limit", type=float, default=0.8, help="smallest ratio allowed (0.8)")
    parser.add_argument("--check", action="store_true", help="exit 1 if a ratio is below it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there, too")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and return the exit status."""
    options = _parser().parse_args(argv)
    ours = sorted(os.sched_getaffinity(0))
    theirs = ours[-1:] if len(ours) > 1 else []
    if theirs:
        os.sched_setaffinity(0, ours[:1])
    else:
        print("one core only: the attacker takes it from the verifier", file=sys.stderr)
    try:
        print(f"{options.devices} devices, passes of {options.pass_ms:g} ms\n")
        print(f"{'attack':<18} {'quiet/s':>9} {'beside/s':>9} {'ratio':>6} {'peak MB':>8}  refused")
        rows = asyncio.run(measure(options, theirs))
    finally:
        os.sched_setaffinity(0, ours)
    if options.json:
        settings = {key: value for key, value in vars(options).items() if key != "json"}
        report = {"benchmark": "hostile", "settings": settings, "results": rows}
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    wrong = any(row["wrong_texts"] for row in rows)
    slow = [row["attack"] for row in rows if float(str(row["ratio"])) < options.limit]
    if options.check and (wrong or slow):
        print(f"below {options.limit}: {slow or 'none'}; wrong texts: {wrong}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
