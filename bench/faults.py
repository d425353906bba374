"""Is any token lost, repeated or wrong when everything goes wrong, and is anything left behind?

Rounds of ten generations (--generations in all), each over an emulated link of its own, by apps
that are processes of their own, on one verifier process. While they generate, links are cut,
stalled in one direction or both and slowed to a few kbit/s; apps are frozen, or killed and begun
again, to go on from what they had written down or anew; the verifier is frozen, or killed and
started again; some apps rest after every token they read. What happens to whom after which token
is drawn from the round's seed; round n of --seed s is round 0 of seed s + n, so that

  make bench-faults ARGS="--seed SEED --generations 10"

does one round again. Exit status 0 if

  - every text is the target's own (see bench/_oracle.py), and none ended otherwise;
  - each app that was not killed closed with no task, thread or descriptor left, and exited 0;
  - after each round the verifier has no generation, session or KV block, and no more tasks,
    threads and descriptors than after an undisturbed round, and no process is left but it.

  make bench-faults                                              # the table model, 500 generations
  make bench-faults ARGS="--target real --generations 20"        # the demo pair
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable, Sequence

from bench._fault_plan import PER_ROUND, Generation, plan
from bench._fault_round import Round, Tally
from bench._oracle import DemoOracle, Oracle, TableOracle
from bench._progress import Progress
from bench._verifier import Verifier
from bench._vitals import Held

TTL_S = 0.5
LIMIT_S = {"table": 120.0, "real": 1200.0}
TABLE_TOKENS = 120
MOST_PROBLEMS = 20  # after which there is no use in going on


class Campaign:
    """Rounds on one verifier."""

    def __init__(
        self, verifier: Verifier, oracle: Oracle, draft_model: str | None, limit_s: float
    ) -> None:
        self.tally = Tally()
        self._verifier = verifier
        self._oracle = oracle
        self._draft_model = draft_model
        self._limit_s = limit_s
        self._before: Held | None = None

    async def run(
        self,
        generations: int,
        seed: int,
        say: Callable[[str], None] = lambda line: None,  # noqa: ARG005
    ) -> None:
        """Run that many generations, and one undisturbed round before."""
        calm = Tally()
        shares = plan(seed, self._oracle.texts)
        for share in shares:
            for one in share:
                one.faults.clear()
        self._before = await self._round(shares, calm)
        self.tally.problems += [f"undisturbed: {problem}" for problem in calm.problems]
        for number, first in enumerate(range(0, generations, PER_ROUND)):
            count = min(PER_ROUND, generations - first)
            shares = plan(seed + number, self._oracle.texts, generations=count)
            known = len(self.tally.problems)
            await self._round(shares, self.tally)
            found = self.tally.problems[known:]
            self.tally.problems[known:] = [f"seed {seed + number}: {text}" for text in found]
            say(
                f"faults: {self.tally.generations} of {generations} generations, "
                f"{self.tally.struck.total()} faults, {len(self.tally.problems)} problems"
            )
            if len(self.tally.problems) > MOST_PROBLEMS:
                break

    async def _round(self, shares: Sequence[Sequence[Generation]], tally: Tally) -> Held:
        one = Round(
            self._verifier,
            self._oracle,
            shares,
            tally,
            draft_model=self._draft_model,
            limit_s=self._limit_s,
            ttl_s=TTL_S,
        )
        return await one.run(self._before)


def serving(model: str) -> Verifier:
    """A verifier that forgets soon."""
    options = {"--model": model, "--threads": 1, "--kv-tokens": 8192, "--session-ttl": TTL_S}
    return Verifier([str(part) for pair in options.items() for part in pair])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--generations", type=int, default=500, metavar="N", help="how many (500)")
    parser.add_argument("--seed", type=int, default=0, help="of the first round (0)")
    parser.add_argument(
        "--target", choices=list(LIMIT_S), default="table", help="a toy (table), or the demo pair"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print and return the exit status."""
    options = _parser().parse_args(argv)
    # Whoever ends this run ends the processes that it started, too.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    say = Progress(every_s=10.0)
    real = options.target == "real"
    oracle: Oracle = DemoOracle(say) if real else TableOracle(tokens=TABLE_TOKENS)
    with serving(oracle.model) as verifier:
        campaign = Campaign(
            verifier, oracle, oracle.model if real else None, LIMIT_S[options.target]
        )
        asyncio.run(campaign.run(options.generations, options.seed, say))
    oracle.close()
    print(
        f"{campaign.tally}\n{verifier.restarts} restarts, {len(campaign.tally.problems)} problems"
    )
    for problem in campaign.tally.problems:
        print(problem, file=sys.stderr)
    return 1 if campaign.tally.problems else 0


if __name__ == "__main__":
    sys.exit(main())
