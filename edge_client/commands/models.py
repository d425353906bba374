"""`draftwire models`: list, fetch, inspect, and tell whether a draft model fits a target."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from pathlib import Path

from draftwire.commands import credentials
from draftwire.printable import printable
from edge_client.model_facts import ModelFacts, facts_of, facts_of_card, fit
from edge_client.model_store import fetch, present

_ADDRESS = re.compile(r"(?!.*/)\S+:\d+")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    if arguments.what == "list":
        for path in present():
            print(path)
        return 0
    if arguments.what == "fetch":
        print(fetch(arguments.source, file=arguments.file, report=_report))
        return 0
    if arguments.what == "inspect":
        facts = _facts(arguments.model, arguments)
        said = json.dumps(facts.as_json(), indent=2) if arguments.json else _text(facts)
        print(printable(said, keep="\n"))
        return 0
    return _fit(arguments)


def _fit(arguments: argparse.Namespace) -> int:
    draft, target = facts_of(arguments.draft), _facts(arguments.target, arguments)
    result = fit(draft, target)
    if arguments.json:
        told = {"fits": result.fits, "problems": result.problems, "remarks": result.remarks}
        print(json.dumps(told | {"draft": draft.as_json(), "target": target.as_json()}, indent=2))
    else:
        verdict = "fits" if result.fits else "does not fit"
        print(printable(f"{draft.name} {verdict} {target.name}"))
        for line in (*result.problems, *result.remarks):
            print(printable(f"  {line}"))
    return 0 if result.fits else 1


def _facts(source: str, arguments: argparse.Namespace) -> ModelFacts:
    """Facts of a path or of what an address serves."""
    if Path(source).expanduser().exists() or not _ADDRESS.fullmatch(source):
        return facts_of(source)
    return asyncio.run(_card_facts(source, arguments))


async def _card_facts(address: str, arguments: argparse.Namespace) -> ModelFacts:
    from edge_client.transport import GrpcTransport

    transport = GrpcTransport(address, credentials(arguments))
    try:
        return facts_of_card(await transport.describe(), address)
    finally:
        await transport.close()


def _text(facts: ModelFacts) -> str:
    template = {True: "yes", False: "none", None: "not told"}[facts.chat_template]
    rows = {
        "calls itself": facts.title if facts.title != facts.name else None,
        "kind": facts.kind,
        "vocabulary": f"{facts.vocabulary_size} tokens, fingerprint {facts.fingerprint}",
        "end tokens": ", ".join(map(str, facts.eos_token_ids)) or "none",
        "chat template": template,
        "weights": facts.quantization or "not told",
        "parameters": f"{facts.parameters / 1e6:.1f} million" if facts.parameters else "",
        "size": f"{facts.size_bytes / 1e6:.1f} MB" if facts.size_bytes else "",
        "context": f"{facts.context} tokens" if facts.context else "not told",
        "runs on": ", ".join(facts.providers),
    }
    lines = (f"  {name:14}{value}" for name, value in rows.items() if value)
    return "\n".join((facts.name, *lines))


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
