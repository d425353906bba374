"""`draftwire models`: list, fetch, inspect, and tell whether a draft model fits a target."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

from draftwire.command_line import HelpFormatter
from draftwire.commands import add_credentials, credentials
from draftwire.printable import printable
from edge_client.model_facts import ModelFacts, facts_of, facts_of_card, fit
from edge_client.model_store import fetch, present

_ADDRESS = re.compile(r"(?!.*/)\S+:\d+")


def add_models(commands: Any) -> None:
    """The command's arguments."""
    models = commands.add_parser(
        "models",
        help="list, fetch and inspect draft models, and see which fit a target",
        description="Draft models on this device.",
        formatter_class=HelpFormatter,
    )
    kinds = models.add_subparsers(title="commands", dest="what", required=True, metavar="COMMAND")
    kinds.add_parser(
        "list",
        help="draft models that are here",
        description="Print the draft models that are here, one path a line: the demo model, "
        "exported ones, and those in the hub's cache.",
        formatter_class=HelpFormatter,
    )
    fetching = kinds.add_parser(
        "fetch",
        help="bring one here",
        description="Bring a draft model here and print its path.",
        formatter_class=HelpFormatter,
    )
    fetching.add_argument(
        "source", metavar="demo|HUB-ID", help="the demo model, or owner/name[@REVISION] of the hub"
    )
    fetching.add_argument("--file", metavar="NAME", help="which of its files, where it has several")
    inspecting = kinds.add_parser(
        "inspect",
        help="what a model's files say",
        description="Print a model's vocabulary, fingerprint, template, quantization and context.",
        formatter_class=HelpFormatter,
    )
    inspecting.add_argument("model", metavar="MODEL|HOST:PORT", help="a model, or a verifier's")
    fitting = kinds.add_parser(
        "fit",
        help="whether a draft model fits a target",
        description="Compare vocabulary, special tokens, chat template and context. Exit status 1 "
        "if the draft model does not fit.",
        formatter_class=HelpFormatter,
    )
    fitting.add_argument("draft", metavar="DRAFT", help="a GGUF file, or an ONNX model")
    fitting.add_argument(
        "target", metavar="TARGET|HOST:PORT", help="a model, a Hugging Face directory, a verifier"
    )
    for parser in (inspecting, fitting):
        parser.add_argument("--json", action="store_true", help="print one JSON object")
        add_credentials(parser)


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
