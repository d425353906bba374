"""What splitting gains over networks: the real two-process system through an emulated link.

Device and verifier run on a core each, the link in a process of its own. For every network, drafter
and temperature these decode the same prompts, token for token the same text:

  cloud-alone    the cloud decodes and streams
  waiting K      rounds of K drafts, each waiting for its verdict
  pipelined W/C  drafts flow while verdicts are out: at most W unjudged, sent C at a time
  run-on W/C     the same, and the cloud writes on while it has none
  controller     chooses among all of these by itself, after one text of the same network

and, without a network, transformers' generate and assisted generation, and llama.cpp alone. In a
repetition every setting runs once, in an order that rotates, so that ratios are of runs within
minutes. A run during which others took more than --others of a core is repeated.

The record is JSON lines; `python -m bench.network_report` makes tables and plots of it. --full runs
the whole matrix on virtual time instead (`bench.controller`), which no other process disturbs. The
exit status is 1 if texts differ or a stream broke.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench import network_report
from bench._campaign import measure
from bench._device import TABLE
from bench._network_record import Record
from bench._settings import ADAPTIVE, DEFAULT, EVERYTHING, FIXED, QUICK, Form
from draftwire.errors import InvalidRequest
from draftwire.testing.demo import demo_model_path

RESULTS = Path(__file__).resolve().parent / "results"


def _full(path: Path, tokens: int | None) -> int:
    """The whole matrix on virtual time, into a record."""
    command = [sys.executable, "-m", "bench.controller", "--full", "--json"]
    command += ["--tokens", str(tokens)] if tokens else []
    with path.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            for line in process.stdout:
                file.write(line)
                print(line, end="", flush=True)
            return process.wait()
        finally:
            process.kill()
            process.wait()


def _machine() -> dict[str, Any]:
    return {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.network",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--quick", action="store_true", help="a few cells, some minutes")
    form.add_argument("--full", action="store_true", help="the whole matrix, on virtual time")
    form.add_argument("--resume", type=Path, metavar="FILE", help="go on with a record, as begun")
    parser.add_argument("--record", type=Path, metavar="FILE", help="where to (bench/results/…)")
    parser.add_argument("--model", help="GGUF file on both sides, or 'table' (the demo model)")
    parser.add_argument("--repetitions", type=int, metavar="N", help="of every run (3; quick: 2)")
    parser.add_argument("--tokens", type=int, metavar="N", help="of every text (80; quick: 64)")
    parser.add_argument(
        "--cells", nargs="+", metavar="TEXT", help="only cells whose name has one of these in it"
    )
    parser.add_argument(
        "--settings", nargs="+", choices=[*FIXED, ADAPTIVE], metavar="NAME", help="only these"
    )
    parser.add_argument(
        "--others", type=float, default=0.1, metavar="SHARE", help="of a core, at most (0.1)"
    )
    return parser


def _form(options: argparse.Namespace) -> Form:
    form = QUICK if options.quick else DEFAULT
    if options.cells:
        wanted = [cell for cell in EVERYTHING if any(name in str(cell) for name in options.cells)]
        if not wanted:
            raise InvalidRequest(
                f"no cell has {' or '.join(options.cells)} in its name",
                remedy=f"name parts of, for instance, '{EVERYTHING[0]}'",
            )
        form = replace(form, cells=wanted)
    if options.settings:
        form = replace(form, settings=options.settings)
    if options.model == TABLE:
        form = replace(form, alone=False)
    return replace(
        form,
        repetitions=options.repetitions or form.repetitions,
        tokens=options.tokens or form.tokens,
    )


def _begun(path: Path, options: argparse.Namespace) -> Record:
    model = options.model or str(demo_model_path())
    return Record.create(
        path, _form(options), {"model": Path(model).name, "source": model, **_machine()}
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, record, report; returns the exit status."""
    options = _parser().parse_args(argv)
    # Whoever ends this run ends what it started, too.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    kind = "full" if options.full else "quick" if options.quick else "default"
    path = options.record or RESULTS / f"network-{kind}-{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
    if options.full:
        path.parent.mkdir(parents=True, exist_ok=True)
        return _full(path, options.tokens)
    try:
        record = Record.read(options.resume) if options.resume else _begun(path, options)
    except InvalidRequest as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"record: {record.path}\n", flush=True)
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    try:
        asyncio.run(measure(record, options.others))
    except KeyboardInterrupt:
        print(f"\nstopped; to go on: --resume {record.path}", file=sys.stderr)
        return 130
    finally:
        if cores:
            os.sched_setaffinity(0, cores)
    return network_report.main([str(record.path)])


if __name__ == "__main__":
    sys.exit(main())
