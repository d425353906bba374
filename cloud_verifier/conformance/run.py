"""`draftwire conformance`: put a client through the scenarios and report."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from cloud_verifier.conformance.case import Case
from cloud_verifier.conformance.outcome import FAILED, NOT_RUN, NOT_SHOWN, PASSED, Outcome
from cloud_verifier.conformance.program import Program
from cloud_verifier.conformance.scenarios import SCENARIOS, Scenario
from cloud_verifier.conformance.server import Checker, serving
from cloud_verifier.conformance.task import task_of
from draftwire.errors import InvalidRequest
from draftwire.reason import reason
from draftwire.testing.record import as_text

_QUIET_S = 1.0
"""How long nobody may come after the last scenario is over, where clients come by themselves."""


def command(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    scenarios = _chosen(arguments.only)
    if arguments.list:
        for scenario in scenarios:
            print(f"{scenario.name:17}{scenario.about}")
        return 0
    if arguments.tasks:
        for scenario in scenarios:
            print(json.dumps(task_of(scenario).as_json(arguments.listen)))
        return 0
    checker = Checker([Case(scenario, patience_s=arguments.patience) for scenario in scenarios])
    asyncio.run(_check(checker, arguments))
    outcomes = [Outcome.of(case) for case in checker.cases]
    if arguments.traces is not None:
        _write_traces(checker.cases, Path(arguments.traces))
    if arguments.json:
        print(json.dumps({"scenarios": [outcome.as_json() for outcome in outcomes]}, indent=1))
    else:
        _summarize(outcomes)
    return int(any(outcome.state in (FAILED, NOT_RUN) for outcome in outcomes))


def _chosen(names: Sequence[str]) -> list[Scenario]:
    known = {scenario.name: scenario for scenario in SCENARIOS}
    if unknown := [name for name in names if name not in known]:
        raise InvalidRequest(
            f"there is no scenario {', '.join(unknown)}", remedy="see draftwire conformance --list"
        )
    return [known[name] for name in names] if names else list(SCENARIOS)


async def _check(checker: Checker, arguments: argparse.Namespace) -> None:
    async with serving(checker, arguments.listen) as address:
        if arguments.client:
            await _drive(checker, address, arguments)
        else:
            enough = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, enough.set)
            print(f"judging clients on {address}; Ctrl-C ends it", file=sys.stderr, flush=True)
            await _watch(checker, arguments, enough)


async def _drive(checker: Checker, address: str, arguments: argparse.Namespace) -> None:
    """Give a program one task after another."""
    program = Program(arguments.client)
    try:
        for case in checker.cases:
            checker.current = case
            task = case.task.as_json(address)
            case.account(await program.answer(task, arguments.timeout, case.begun))
            _tell(case, arguments)
    finally:
        await program.close()


async def _watch(checker: Checker, arguments: argparse.Namespace, enough: asyncio.Event) -> None:
    """Wait for clients until every scenario is over, or there is enough of it."""
    streams, told = -1, set[Case]()
    while not enough.is_set():
        for case in checker.cases:
            if case.over and case not in told:
                _tell(case, arguments)
                told.add(case)
        now = sum(case.streams for case in checker.cases)
        if now == streams and told.issuperset(checker.cases):
            return
        streams = now
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(enough.wait(), _QUIET_S)
    for case in checker.cases:
        if case not in told and case.streams:  # those that nobody came to, the summary counts
            _tell(case, arguments)


def _tell(case: Case, arguments: argparse.Namespace) -> None:
    if not arguments.json:
        print(*Outcome.of(case).lines(), sep="\n", flush=True)


def _summarize(outcomes: Sequence[Outcome]) -> None:
    counts = dict.fromkeys((PASSED, FAILED, NOT_SHOWN, NOT_RUN), 0)
    for outcome in outcomes:
        counts[outcome.state] += 1
    said = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    print(f"{len(outcomes)} scenarios: {said}")


def _write_traces(cases: Sequence[Case], folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for case in cases:
            path = folder / f"{case.scenario.name}.json"
            path.write_text(as_text(case.task.as_json(), case.record), encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(f"{folder} can't be written: {reason(error, folder)}") from error
