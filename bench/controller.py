"""How close the controller comes to the best that a fixed choice could do, on virtual time.

The real session, service and engine decode a table model over emulated links, with drafters of
several acceptance rates and passes and drafts of several speeds. Compared are, in milliseconds a
token from the request to the last token, over three texts:

  fixed     the best of the fixed plans tried, which nobody could know beforehand: rounds of 1 to 16
            drafts, windows of 8 to 48 drafts that flow, with and without run-on, the cloud alone
  cloud     the cloud alone, streaming
  adaptive  the controller, after one text of as many tokens

`ratio` is adaptive over fixed, `off` how far the controller's own estimate is from what happened
(median over stretches of 64 tokens). All texts must be the target's own. Then the link changes
from every profile to every other, and stalls; and drafts take 7, 100 and 7 ms in the thirds of a
text, or one takes ten seconds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from bench._slowdowns import claims, slowdown
from bench._switches import outage, switches
from bench._virtual import CPU, FAST_CPU, GPU, PROMPTS, Compared, Run, World, measure, target_model
from draftwire.testing.wire import PROFILES
from draftwire.types import SamplingParams
from edge_client.choice import Objective
from edge_client.controller import AdaptiveController
from edge_client.plan import Controller, FixedController, Plan
from edge_client.trace import TracedController

RATES = (0.97, 0.8, 0.6)
SPEEDS = {"cpu": CPU, "fast-cpu": FAST_CPU, "gpu": GPU}
RUN_ON = 128
FIXED = {
    "cloud-alone": Plan.cloud_alone(RUN_ON),
    **{f"waiting {k}": Plan.waiting(k) for k in (1, 2, 4, 8, 16)},
    **{f"flowing {w}/{c}": Plan.flowing(w, c) for w, c in ((8, 2), (24, 2), (48, 4))},
    **{f"run-on {w}/{c}": Plan.flowing(w, c, RUN_ON) for w, c in ((8, 2), (24, 2), (48, 4))},
}
"""The fixed plans."""

TOKENS = 300
STRETCH = 64  # tokens over which an estimate is held against what happened


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell(Compared):
    """One setting; `off` is how far the controller's estimate was from what happened."""

    speeds: str
    profile: str
    rate: float
    temperature: float
    off: float


def compare(
    speeds: str,
    profile: str,
    rate: float,
    temperature: float = 0.0,
    tokens: int = TOKENS,
    plans: Sequence[str] = tuple(FIXED),
) -> Cell:
    """Decode with all fixed plans and with the controller. Raises if any text differs."""
    sampling = SamplingParams(temperature=temperature, seed=1)
    texts: dict[int, list[int]] = {}

    def run(controller: Controller, index: int) -> Run:
        world = World(link=PROFILES[profile], rate=rate, speeds=SPEEDS[speeds], seed=index)
        done = measure(world, controller, tokens, PROMPTS[index], sampling=sampling)
        assert done.tokens == texts.setdefault(index, done.tokens)
        return done

    def mean(runs: Iterator[Run]) -> float:
        return statistics.fmean(run.ms_per_token for run in runs)

    fixed = {name: mean(run(FixedController(FIXED[name]), i) for i in range(3)) for name in plans}
    lines: list[str] = []
    controller = AdaptiveController()
    run(controller, 3)
    traced = (TracedController(controller, lines.append, i) for i in range(3))
    adaptive = mean(run(one, i) for i, one in enumerate(traced))
    if temperature == 0:
        for index, text in texts.items():
            assert text == target_model().generate(PROMPTS[index], tokens)
    return Cell(
        speeds=speeds,
        profile=profile,
        rate=rate,
        temperature=temperature,
        fixed=fixed,
        adaptive=adaptive,
        off=statistics.median(map(abs, errors(lines))),
    )


def errors(lines: Sequence[str]) -> list[float]:
    """Relative errors of the estimates of a trace, over stretches of its text."""
    found: list[float] = []
    rounds = [json.loads(line) for line in lines]
    expected = taken = tokens = 0.0
    for before, after in itertools.pairwise(rounds):
        if after["generation"] != before["generation"] or after["expected_ms"] is None:
            expected = taken = tokens = 0.0
            continue
        tokens += after["outcome"]["committed"]
        expected += after["expected_ms"] * after["outcome"]["committed"]
        taken += (after["at_s"] - before["at_s"]) * 1e3
        if tokens >= STRETCH:
            found.append(expected / taken - 1)
            expected = taken = tokens = 0.0
    return found


def cells(arguments: argparse.Namespace) -> Iterator[tuple[str, str, float, float]]:
    """The settings to measure."""
    speeds = ("cpu",) if arguments.quick else tuple(SPEEDS)
    profiles = ("lan", "lte", "satellite") if arguments.quick else tuple(PROFILES)
    rates = (0.97, 0.6) if arguments.quick else RATES
    yield from itertools.product(speeds, profiles, rates, (0.0,))
    if arguments.full:
        yield from itertools.product(("cpu",), ("lan", "lte"), (0.95,), (0.0,))
        for profile, rate in itertools.product(profiles, rates):
            yield "cpu", profile, rate, 0.8


def main() -> int:
    """Measure the grid and print it; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a few cells")
    parser.add_argument("--full", action="store_true", help="also at temperature 0.8")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="tokens a text (default: 300)")
    parser.add_argument("--check", action="store_true", help="fail where a claim does not hold")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    arguments = parser.parse_args()
    if not arguments.json:
        print(
            "speeds    profile       α    T   fixed  best fixed       cloud  adaptive  ratio   off"
        )
    done = []
    for setting in cells(arguments):
        cell = compare(*setting, tokens=arguments.tokens)
        done.append(cell)
        if arguments.json:
            print(json.dumps(asdict(cell) | {"best": cell.best, "ratio": cell.ratio}), flush=True)
        else:
            print(
                f"{cell.speeds:<9} {cell.profile:<9} {cell.rate:5.2f} {cell.temperature:4.1f} "
                f"{cell.fixed[cell.best]:7.1f}  {cell.best:<15} "
                f"{cell.fixed['cloud-alone']:6.1f} {cell.adaptive:9.1f} {cell.ratio:6.3f} "
                f"{cell.off:5.1%}",
                flush=True,
            )
    slowed = {
        (rate, objective): slowdown(rate, FIXED, objective)
        for rate, objective in itertools.product((0.97, 0.8), Objective)
    }
    for (rate, objective), thirds in slowed.items():
        for third in thirds:
            if arguments.json:
                print(json.dumps(asdict(third) | {"rate": rate, "objective": objective.value}))
            else:
                print(f"drafts of {third.draft_ms:3.0f} ms, α {rate}, {objective.value:<7} {third}")
    summary = summarise(done) | _changes(quick=arguments.quick) | claims(slowed)
    for name, (value, limit) in summary.items():
        verdict = "" if value <= limit else "  FAILS"
        if arguments.json:
            print(json.dumps({"claim": name, "value": value, "limit": limit}))
        else:
            print(f"{name:<66} {value:6.3f}  (limit {limit:.2f}){verdict}")
    return 1 if arguments.check and any(v > limit for v, limit in summary.values()) else 0


def summarise(done: Sequence[Cell]) -> dict[str, tuple[float, float]]:
    """What is claimed of the cells: value and limit."""
    overall = {
        name: statistics.geometric_mean([cell.fixed[name] / cell.fixed[cell.best] for cell in done])
        for name in FIXED
    }
    best = min(overall, key=lambda name: overall[name])
    ours = statistics.geometric_mean([cell.ratio for cell in done])
    return {
        "ratio to the best fixed plan, geometric mean": (ours, 1.02),
        "ratio to the best fixed plan, largest": (max(cell.ratio for cell in done), 1.05),
        f"ratio to the best single plan over all cells, {best}": (ours / overall[best], 1.0),
        "ratio to the cloud alone, largest": (max(cell.to_cloud for cell in done), 1.05),
        "error of the estimates, median over cells": (
            statistics.median(cell.off for cell in done),
            0.15,
        ),
    }


def _changes(*, quick: bool) -> dict[str, tuple[float, float]]:
    """What is claimed of changes of the link."""
    claims = {}
    for rate in (0.8,) if quick else (0.97, 0.8):
        made = switches(rate, CPU, FIXED)
        name = f"ratio to the best fixed plan after a change, α {rate}, mean of {len(made)}"
        claims[name] = (statistics.fmean(one.ratio for one in made), 1.1)
    stalled = outage(0.8, CPU)
    whole = stalled.tokens == target_model().generate(PROMPTS[0], len(stalled.tokens))
    broken = stalled.generation.opens - 1 + (not whole)
    claims["streams broken or texts spoilt by a stall of 3 s"] = (float(broken), 0.0)
    return claims


if __name__ == "__main__":
    sys.exit(main())
