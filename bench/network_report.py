"""Tables and plots of what `bench.network` recorded.

Prints Markdown: what is claimed of the measurement and whether it holds, and a table for each cell.
With --into FILE the text goes between the lines `<!-- network:begin -->` and `<!-- network:end -->`
of that file instead; with --plots DIR images go there (needs matplotlib: the bench extra). A record
of --full has a table and lines of its own (`network-full`).

Ratios are of runs of the same repetition, and so of the same prompt; a figure is the median over
repetitions, and the range behind it is from the least to the greatest.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import _network_claims, _network_plots, _network_tables
from bench._network_record import Record
from draftwire.errors import InvalidRequest, MissingDependency

BEGIN, END = "<!-- network{}:begin -->", "<!-- network{}:end -->"


def between(text: str, kind: str, news: str) -> str:
    """`text` with `news` between the lines of that kind. Raises `InvalidRequest` without them."""
    begin, end = BEGIN.format(kind), END.format(kind)
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise InvalidRequest(f"the file lacks the lines {begin} and {end}")
    return f"{before}{begin}\n\n{news.strip()}\n\n{end}{after}"


def main(argv: Sequence[str] | None = None) -> int:
    """Report; returns the exit status: 1 if texts differ or streams broke."""
    options = _parser().parse_args(argv)
    broken, parts = 0, []
    for path in options.records:
        if _virtual(path):
            lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            parts.append(("-full", _network_tables.virtual(lines)))
            continue
        record = Record.read(path)
        broken += _network_claims.broken(record)
        claims = _network_claims.table(_network_claims.claims(record))
        claims += f"\n{_network_claims.flowing(record)}"
        pictures = _pictures(record, options.plots, options.into) if options.plots else ""
        parts.append(("", f"{claims}\n{pictures}{_network_tables.report(record)}"))
    for kind, text in parts:
        if options.into:
            whole = between(options.into.read_text(encoding="utf-8"), kind, text)
            options.into.write_text(whole, encoding="utf-8")
        else:
            print(text)
    return 1 if broken else 0


def _pictures(record: Record, folder: Path, page: Path | None) -> str:
    """Draw; returns the lines that show it on the page."""
    try:
        drawn = _network_plots.draw(record, folder)
    except MissingDependency as error:
        print(f"no plots: {error}", file=sys.stderr)
        return ""
    if page is None:
        return ""
    beside = page.resolve().parent
    links = [os.path.relpath(path.resolve(), beside) for path in drawn]
    return "".join(f"![{Path(link).stem.replace('-', ' ')}]({link})\n\n" for link in links)


def _virtual(path: Path) -> bool:
    with path.open(encoding="utf-8") as file:
        return '"speeds"' in file.readline()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.network_report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("records", nargs="+", type=Path, metavar="RECORD", help="JSON lines")
    parser.add_argument("--into", type=Path, metavar="FILE", help="a Markdown file with the lines")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw into this folder")
    return parser


if __name__ == "__main__":
    sys.exit(main())
