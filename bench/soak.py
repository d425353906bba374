"""Do verifiers and devices stay themselves under many sessions that come and go?

64 devices (--sessions) behind eight links use one verifier process over gRPC for ten minutes
(--minutes). Each generates again and again: one of a fixed set of prompts, begun anew or with part
of its text already there, greedy or with a seed, with random K (drafts are the known text, 15 % of
it replaced), in a session of its own or in the last one. It reads to the end, cancels, walks away,
vanishes without a word or sends nonsense; the links are cut, on average every 15 seconds each, and
generations go on on new ones. KV is short (--kv-tokens), so that sessions wait for it, or lose
theirs to others.

With --faults there is a second verifier, which half of the links prefer; it is stopped and killed
in turn and started again, ten times in all and at most once a minute, and all fail over to the
other one. Links also refuse to connect, stall in one direction or both and trickle, some readers
are slow, and two apps in processes of their own are killed and go on, again and again. `make soak`
is that for half an hour.

Exit status 0 if
  - every text is, as far as it was read, what the target says alone: in transformers as it ships
    (see bench/_reference.py; a true tie is excused and counted), or the table model itself;
  - nothing failed but what was to fail;
  - over the second half, of up to five minutes, resident memory stayed within 3 %, and within 16
    descriptors what is open, of the verifier that is not restarted and of this process, which has
    the devices and the links in it;
  - afterwards no generation is in flight, and when the sessions' time to live is over none is
    kept, and all KV blocks are free, as the verifiers' metrics have it; and no verifier has more
    tasks and descriptors than before, nor has this process.

  make soak
  make bench-soak
  make bench-soak ARGS="--target table --minutes 1"
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from bench._oracle import DemoOracle, Oracle, TableOracle
from bench._progress import Progress
from bench._soak_devices import Outcomes, Site
from bench._soak_faults import killing, restarting
from bench._soak_record import MOST_FILES, MOST_SPREAD, Record, Side
from bench._verifier import Verifier
from bench._vitals import Held, Vitals, held_by_nobody, left_beyond

SITES = 8
APPS = 2
RESTARTS = 10
TTL_S = 2.0
LONGEST_LOOK_S = 300.0
KV_TOKENS = {"real": 4096, "table": 2048}
MOST_FAULTS = 50  # after which there is no use in going on


def serving(model: str, *, sessions: int, kv_tokens: int) -> Verifier:
    """A verifier with short KV that forgets soon and does not wait long when it is stopped."""
    options = {
        "--model": model,
        "--threads": 1,
        "--max-sessions": 2 * sessions,  # a cut stream's session may still be there
        "--kv-tokens": kv_tokens,
        "--session-ttl": TTL_S,
        "--grace": 1,
    }
    return Verifier([str(part) for pair in options.items() for part in pair])


class Soak:
    """Uses verifiers, of which the second and further ones are restarted meanwhile."""

    def __init__(
        self,
        verifiers: Sequence[Verifier],
        oracle: Oracle,
        *,
        sessions: int,
        seconds: float,
        seed: int = 0,
        draft_model: str | None = None,
        say: Callable[[str], None] = lambda line: None,  # noqa: ARG005
    ) -> None:
        """`draft_model` is a GGUF file that killed apps draft with; None: the texts."""
        self._verifiers = verifiers
        self._oracle = oracle
        self._sessions = sessions
        self._seconds = seconds
        self._seed = seed
        self._draft_model = draft_model
        self._say = say
        self._outcomes = Outcomes()
        self._vitals = {"verifier": Vitals(), "devices": Vitals()}

    async def run(self) -> Record:
        """Use them for so long, then wait until they have forgotten everyone."""
        self._started = time.monotonic()
        before = [verifier.held_at_rest() for verifier in self._verifiers]
        own = await held_by_nobody()
        pids = {"verifier": self._verifiers[0].pid, "devices": os.getpid()}
        async with asyncio.TaskGroup() as group:
            watching = [
                group.create_task(vitals.watch(pids[name])) for name, vitals in self._vitals.items()
            ]
            watching.append(group.create_task(self._tell()))
            async with asyncio.TaskGroup() as users:
                self._use(users)
            took = time.monotonic() - self._started
            self._say("waiting for the verifiers to forget everyone")
            values = await asyncio.to_thread(self._verifiers[0].values)
            left = await self._left(before)
            for task in watching:
                task.cancel()
        for name, more in (await left_beyond(own, within_s=1.0)).items():
            if name != "threads":  # those of the loop's own executor stay
                left[f"own {name}"] = more
        until_s = min(took, self._seconds)  # then one device after the other goes
        since_s = until_s - min(until_s / 2, LONGEST_LOOK_S)
        return Record(
            target=Path(self._oracle.model).stem,
            sessions=self._sessions,
            seconds=took,
            outcomes=self._outcomes,
            sides={
                name: Side.of(vitals, since_s, until_s) for name, vitals in self._vitals.items()
            },
            metrics=values,
            left=left,
        )

    def _use(self, group: asyncio.TaskGroup) -> None:
        addresses = [verifier.address for verifier in self._verifiers]
        shares = [self._sessions // SITES + (i < self._sessions % SITES) for i in range(SITES)]
        for i, devices in enumerate(shares):
            if devices:
                order = addresses[::-1] if i % 2 else addresses
                site = Site(order, self._oracle, devices, self._seed + 100 * i)
                group.create_task(site.run(self._outcomes, self._over))
        for verifier in self._verifiers[1:]:
            every_s = min(60.0, self._seconds / RESTARTS)
            group.create_task(restarting(verifier, every_s, self._outcomes, self._over))
        for app in range(APPS if len(self._verifiers) > 1 else 0):
            group.create_task(
                killing(
                    addresses,
                    self._oracle,
                    self._draft_model,
                    self._seed + app,
                    self._outcomes,
                    self._over,
                )
            )

    def _over(self) -> bool:
        outcomes = self._outcomes
        failing = len(outcomes.errors) + len(outcomes.differences) > MOST_FAULTS
        return failing or time.monotonic() - self._started >= self._seconds

    async def _tell(self) -> None:
        outcomes = self._outcomes
        while True:
            await asyncio.sleep(1)
            sizes = [f"{v.samples[-1][1] / 1e6:.0f} MB" for v in self._vitals.values()]
            self._say(
                f"soak: {time.monotonic() - self._started:.0f} of {self._seconds:.0f} s, "
                f"{sum(outcomes.ends.values())} generations, {len(outcomes.differences)} "
                f"differences, {len(outcomes.errors)} errors, {' and '.join(sizes)}"
            )

    async def _left(self, before: Sequence[Held]) -> dict[str, float]:
        """What is in flight, kept or taken after the sessions' time to live."""
        left: dict[str, float] = {}
        deadline = time.monotonic() + 4 * TTL_S
        for verifier, at_first in zip(self._verifiers, before, strict=True):
            left |= await asyncio.to_thread(verifier.left, within_s=4 * TTL_S)
            while True:
                more = (await asyncio.to_thread(verifier.held)).beyond(at_first)
                more.pop("threads", None)  # gRPC keeps some in reserve
                if not more or time.monotonic() > deadline:
                    break
                await asyncio.sleep(0.1)
            left |= more
        return left


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
    parser.add_argument(
        "--faults", action="store_true", help="break much more, and restart a second verifier"
    )
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
    say("starting the verifiers")
    with ExitStack() as stack:
        verifiers = [
            stack.enter_context(
                serving(oracle.model, sessions=options.sessions, kv_tokens=kv_tokens)
            )
            for _ in range(2 if options.faults else 1)
        ]
        soak = Soak(
            verifiers,
            oracle,
            sessions=options.sessions,
            seconds=60 * options.minutes,
            seed=options.seed,
            draft_model=None if options.target == "table" else oracle.model,
            say=say,
        )
        record = asyncio.run(soak.run())
    oracle.close()
    print(record)
    faults = record.faults(MOST_SPREAD, MOST_FILES)
    for line in faults[:20]:
        print(line, file=sys.stderr)
    if options.json:
        record.outcomes.disturbed = dict(record.outcomes.disturbed)  # asdict copies no Counter
        result = asdict(record) | {"faults": faults}
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
