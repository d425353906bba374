"""Writes docs/traces/ from what our own client does; with --check, fails where it is not current.

The client is the example for `draftwire conformance`, in memory and on virtual time, so that the
frames are the same wherever they are made.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cloud_verifier.conformance.case import Case
from cloud_verifier.conformance.scenarios import SCENARIOS, Scenario
from draftwire.testing.clock import run_virtual
from draftwire.testing.memory import MemoryTransport
from draftwire.testing.record import as_text

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "traces"
SHOWN = ("round", "rejection", "dead-drafts", "run-on", "cut", "cancel")
_ID = bytes(range(16))

sys.path.append(str(ROOT / "examples"))


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the golden frame traces in docs/traces.")
    parser.add_argument("--check", action="store_true", help="only compare")
    check = parser.parse_args().check
    fresh = {FOLDER / f"{name}.json": trace(name) for name in SHOWN}
    if check:
        if stale := differing(fresh):
            print(f"{', '.join(stale)}: not what our client sends: run `make docs`")
            return 1
        return 0
    FOLDER.mkdir(exist_ok=True)
    for path, text in fresh.items():
        path.write_text(text, encoding="utf-8")
    return 0


def differing(fresh: dict[Path, str]) -> list[str]:
    """Names of the files that are not as they would be written, or would not be."""
    there = {path: path.read_text(encoding="utf-8") for path in FOLDER.glob("*")}
    return [path.name for path in sorted(fresh | there) if fresh.get(path) != there.get(path)]


def trace(name: str) -> str:
    """The trace of a scenario by that name."""
    [scenario] = [scenario for scenario in SCENARIOS if scenario.name == name]
    case = rehearsed(scenario)
    return as_text(case.task.as_json(), case.record)


def rehearsed(scenario: Scenario) -> Case:
    """A scenario that our own client has been through, on virtual time."""
    from conformance_client import answer, begun

    async def run() -> Case:
        case = Case(scenario)
        transport = MemoryTransport(case.decode, case.engine.card)
        task = case.task.as_json()
        session = await begun(task, transport)
        session.id = _ID
        case.account(await answer(task, session))
        await transport.close()
        return case

    return run_virtual(run(), timeout_s=300)


if __name__ == "__main__":
    sys.exit(main())
