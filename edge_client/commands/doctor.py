"""`draftwire doctor`: measure this device and its verifier, and say what to expect."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from draftwire.commands import credentials
from draftwire.errors import VocabularyMismatch
from draftwire.printable import printable
from draftwire.testing.demo import demo_model_path
from draftwire.types import ModelCard
from edge_client.choice import Objective, Watts
from edge_client.commands.doctor_report import Report, as_json, lines
from edge_client.console import remark
from edge_client.draft_model import drafter_of, load_model
from edge_client.drafter import Drafter
from edge_client.drafters.threaded import cores_to_draft_on
from edge_client.failover import runs_here, transport_to
from edge_client.model_facts import ModelFacts, facts_of, facts_of_card, fit
from edge_client.outlook import Outlook
from edge_client.profiles import PROFILES, Profile
from edge_client.session import Session
from edge_client.survey import PROMPTS, Survey, draft_speed, encode, survey
from edge_client.transport import Transport


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit status.

    Raises `VocabularyMismatch` if the draft model does not fit the target.
    """
    screen = Console(stderr=True)
    report = asyncio.run(_examine(arguments, lambda line: remark(screen, f"{line} …")))
    if arguments.json:
        print(json.dumps(as_json(report), indent=2))
    else:
        print(printable("\n".join(lines(report)), keep="\n"))
    return 0


async def _examine(arguments: argparse.Namespace, say: Callable[[str], None]) -> Report:
    profile = PROFILES.get(arguments.profile or "")
    path = arguments.model or demo_model_path()
    context = profile.context if profile else arguments.context
    facts = facts_of(path)
    notes = _notes(facts, context, arguments.profile, profile)
    transport = None
    try:
        if arguments.verifier:
            transport = transport_to(arguments.verifier, credentials(arguments))
            card = await transport.describe()
            fits = fit(facts, facts_of_card(card, arguments.verifier))
            if not fits.fits:
                raise VocabularyMismatch(
                    f"{facts.name} can't draft for {card.target.model}: {fits.problems[0]}",
                    remedy="choose a draft model of the target's family; see draftwire models fit",
                )
        else:
            notes.append("no verifier was asked: give --verifier HOST:PORT to hear what to expect")
        speeds = []
        beside = bool(arguments.verifier) and runs_here(arguments.verifier)
        if beside:
            notes.append(
                "the verifier shares this machine's cores: give each side its own, with taskset"
            )
        for threads in _thread_counts(arguments.threads, profile, beside=beside):
            say(f"drafting on {threads} thread{'s' * (threads > 1)}")
            speeds.append(
                await draft_speed(path, threads, context=context, providers=arguments.providers)
            )
        best = min(speeds, key=lambda one: one.token_s)
        report = Report(
            model=facts.name,
            speeds=speeds,
            threads=best.threads,
            context=context,
            watts=arguments.watts or (profile.watts if profile else Watts()),
            notes=notes,
        )
        if transport is None:
            return report
        found = await _short_run(transport, card, path, report, arguments.providers, say)
    finally:
        if transport is not None:
            await transport.close()
    outlook = Outlook(
        times=found.measured.times,
        acceptance=found.measured.acceptance,
        objective=Objective(arguments.objective),
        watts=report.watts,
        alone_s=found.alone_s,
    )
    return replace(report, found=found, outlook=outlook)


async def _short_run(
    transport: Transport,
    card: ModelCard,
    path: str | Path,
    report: Report,
    providers: Sequence[str],
    say: Callable[[str], None],
) -> Survey:
    """The survey, drafting on the threads that are fastest."""
    model = load_model(path, threads=report.threads, providers=providers)
    drafter = drafter_of(model, threads=report.threads, context=report.context)
    speaks = model.tokenizer

    def session(drafter: Drafter | None) -> Session:
        return Session(
            transport,
            card,
            fingerprint=speaks.fingerprint,
            drafter=drafter,
            eos_token_ids=speaks.eos_token_ids,
        )

    try:
        say("a short run with the verifier")
        return await survey(session, drafter, [encode(speaks, text) for text in PROMPTS], say)
    finally:
        model.close()
        await drafter.close()


def _notes(facts: ModelFacts, context: int, name: str, profile: Profile | None) -> list[str]:
    """What of the model does not suit the device."""
    notes = []
    if profile and facts.size_bytes and facts.size_bytes > profile.memory_bytes:
        notes.append(
            f"the model's {facts.size_bytes / 1e9:.1f} GB exceed the "
            f"{profile.memory_bytes / 1e9:.0f} GB of {name}"
        )
    if facts.context and facts.context < context:
        notes.append(f"the draft model knows contexts of {facts.context} tokens, not {context}")
    return notes


def _thread_counts(wanted: int | None, profile: Profile | None, *, beside: bool) -> list[int]:
    """Thread counts to try: powers of two and all that may be used, or the one asked for."""
    if wanted:
        return [wanted]
    cores = cores_to_draft_on(beside_verifier=beside)
    most = min(cores, profile.threads) if profile else cores
    return sorted({count for count in (1, 2, 4, 8) if count < most} | {most})
