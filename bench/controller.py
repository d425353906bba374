"""How close the controller comes to the best that a fixed choice could do, on virtual time.

The real session, service and engine decode a table model over links of several round trips, with
drafters of several acceptance rates. Passes and drafts take the times that the CPU pair was
measured to take. Three ways to decode are compared, in milliseconds a token from the request to
the last token:

  fixed     waiting with the best fixed K of those tried, which nobody could know beforehand
  cloud     the cloud alone, streaming
  adaptive  the controller, which begins knowing nothing

The ratio is adaptive over the better of the other two. With --check, one above --limit fails.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from bench._virtual import PROMPTS, Run, World, measure
from edge_client.controller import AdaptiveController
from edge_client.plan import Controller, FixedController, Plan

RTTS_MS = (1, 20, 60, 150, 600)
RATES = (0.97, 0.8, 0.6)
LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The three ways to decode compared, ms a token, and the best fixed K."""

    rtt_ms: float
    rate: float
    fixed: float
    best_k: int
    cloud: float
    adaptive: float
    k_mean: float

    @property
    def ratio(self) -> float:
        """Adaptive over the better of the two others."""
        return self.adaptive / min(self.fixed, self.cloud)


def compare(rtt_ms: float, rate: float, max_tokens: int) -> Cell:
    """Decode in all three ways."""

    def runs(controller: Callable[[], Controller]) -> list[Run]:
        return [measure(World(rtt_ms, rate), controller(), max_tokens, p) for p in PROMPTS]

    def mean(some: Sequence[Run]) -> float:
        return statistics.fmean(run.ms_per_token for run in some)

    def fixed(plan: Plan) -> float:
        return mean(runs(lambda: FixedController(plan)))

    best, best_k = min((fixed(Plan.waiting(k)), k) for k in LENGTHS)
    adaptive = runs(AdaptiveController)
    sent = [run.generation for run in adaptive]
    return Cell(
        rtt_ms=rtt_ms,
        rate=rate,
        fixed=best,
        best_k=best_k,
        cloud=fixed(Plan.cloud_alone()),
        adaptive=mean(adaptive),
        k_mean=sum(g.sent_tokens for g in sent) / max(1, sum(g.sent_frames for g in sent)),
    )


def main() -> int:
    """Measure the grid and print it; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=300, help="tokens a run (default: 300)")
    parser.add_argument("--limit", type=float, default=1.1, help="largest ratio (default: 1.1)")
    parser.add_argument("--check", action="store_true", help="fail where a ratio is above it")
    parser.add_argument("--json", action="store_true", help="print one JSON object a cell")
    arguments = parser.parse_args()
    if not arguments.json:
        print("RTT ms     α   fixed   (K)   cloud   adaptive  (mean K)   ratio")
    ratios = []
    for rtt_ms in RTTS_MS:
        for rate in RATES:
            cell = compare(rtt_ms, rate, arguments.tokens)
            ratios.append(cell.ratio)
            if arguments.json:
                print(json.dumps(asdict(cell) | {"ratio": cell.ratio}), flush=True)
            else:
                print(
                    f"{rtt_ms:6} {rate:5.2f} {cell.fixed:7.1f}  ({cell.best_k:2}) {cell.cloud:7.1f}"
                    f"  {cell.adaptive:9.1f}    ({cell.k_mean:4.1f})  {cell.ratio:6.3f}",
                    flush=True,
                )
    if not arguments.json:
        print(f"median ratio {statistics.median(ratios):.3f}, largest {max(ratios):.3f}")
    return 1 if arguments.check and max(ratios) > arguments.limit else 0


if __name__ == "__main__":
    sys.exit(main())
