"""Whether `draftwire doctor` foretells what `draftwire demo` then measures, on the demo pair.

At each round trip, one after the other: a verifier on one core, `draftwire doctor` on another,
then `draftwire demo --pin` with as many pairs of runs as --repeat says. The speed-up that the
doctor expects of 200 tokens is set beside the demo's median. The doctor's short run has other
prompts than the demo. With --check it fails where they differ by more than --limit.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench._cores import sides
from bench._progress import Progress
from draftwire.testing.demo import demo_model_path
from draftwire.testing.link import LinkEmulator, LinkProfile
from edge_client.verifier_process import VerifierProcess

SERVE = ("--kv-tokens", "8192", "--max-sessions", "4")  # as in `draftwire demo`


def compare(rtt_ms: float, repeat: int, model: str, say: Progress) -> dict[str, Any]:
    """The doctor's report and the demo's at one round trip."""
    say(f"at {rtt_ms:g} ms: the doctor")
    doctor = _doctor(rtt_ms, model)
    say(f"at {rtt_ms:g} ms: the demo")
    options = ["--pin", "--ignore-eos", "--repeat", str(repeat), "--rtt", str(rtt_ms)]
    demo = _json_of(
        ["demo", "--json", "--model", model, "--target", str(demo_model_path()), *options]
    )
    expected, measured = doctor["expected_speedup"], demo["speedup"]
    return {
        "rtt_ms": rtt_ms,
        "expected": expected,
        "measured": measured,
        "measured_each": demo["speedups"],
        "error": round(expected / measured - 1, 4),
        "identical": demo["identical_to_target"],
        "doctor": doctor,
    }


def _doctor(rtt_ms: float, model: str) -> dict[str, Any]:
    device, cloud = sides()
    with ExitStack() as stack:
        serve = ["--model", str(demo_model_path()), *SERVE]
        address = stack.enter_context(VerifierProcess(serve, cores=cloud)).address
        if device:
            stack.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
            os.sched_setaffinity(0, device)  # which the link and the doctor inherit
        if rtt_ms:
            link = LinkEmulator.in_thread(address, LinkProfile(rtt_ms=rtt_ms))
            address = stack.enter_context(link).address
        return _json_of(["doctor", "--json", "--model", model, "--verifier", address])


def _json_of(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "edge_client", *command], stdout=subprocess.PIPE, check=True
    )
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def main(argv: list[str] | None = None) -> int:
    """Run from the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rtt", type=float, nargs="*", default=[0.0, 20.0, 60.0], metavar="MS")
    parser.add_argument("--repeat", type=int, default=3, help="pairs of runs of the demo (3)")
    parser.add_argument("--model", default=str(demo_model_path()), help="draft model (the demo's)")
    parser.add_argument("--limit", type=float, default=0.2, help="largest error allowed (0.2)")
    parser.add_argument("--check", action="store_true", help="exit 1 if an error exceeds the limit")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there, too")
    args = parser.parse_args(argv)
    say = Progress()
    results = [compare(rtt, args.repeat, args.model, say) for rtt in args.rtt]
    print("   RTT  expected  measured  error")
    for one in results:
        print(
            f"{one['rtt_ms']:4g} ms  {one['expected']:7.2f}×  {one['measured']:7.2f}×  "
            f"{100 * one['error']:+.0f} %"
        )
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n")
    worst = max(abs(one["error"]) for one in results)
    if args.check and worst > args.limit:
        print(f"the error {worst:.2f} exceeds the limit {args.limit}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
