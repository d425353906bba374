"""`draftwire doctor`: measure this device and its verifier, and say what to expect."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from draftwire.commands import credentials
from draftwire.testing.demo import demo_model_path
from edge_client.choice import Objective, Watts
from edge_client.console import remark
from edge_client.draft_model import drafter_of, load_model
from edge_client.drafter import Drafter
from edge_client.drafters.threaded import default_threads
from edge_client.failover import transport_to
from edge_client.model_facts import facts_of, facts_of_card, fit
from edge_client.outlook import Expected, Outlook
from edge_client.profiles import PROFILES, Profile
from edge_client.session import Session
from edge_client.survey import PROMPTS, DraftSpeed, Survey, draft_speed, encode, survey

RTTS_MS = (0, 20, 60, 150, 300)
"""Round trips to say what to expect at, besides the one measured."""

TOKENS = 200
"""Length of the text whose speed-up is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was measured and what follows. Without a verifier, drafting alone."""

    model: str
    speeds: list[DraftSpeed]
    threads: int
    context: int
    watts: Watts
    notes: list[str]
    found: Survey | None = None
    outlook: Outlook | None = None

    @property
    def speed(self) -> DraftSpeed:
        """The one on the threads to use."""
        return next(one for one in self.speeds if one.threads == self.threads)

    def over_a_text(self, expected: Expected) -> float:
        """Speed-up over a whole text, which starts and reads its prompt first."""
        assert self.found is not None  # noqa: S101 (there is an outlook)
        read_s = self.found.prompt_tokens * self.speed.prompt_token_s
        return expected.over(TOKENS, self.found.start_s, read_s)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit status: 1 if the draft model does not fit the target."""
    screen = Console(stderr=True)
    report = asyncio.run(_examine(arguments, lambda line: remark(screen, f"{line} …")))
    if arguments.json:
        print(json.dumps(as_json(report), indent=2))
    else:
        print("\n".join(lines(report)))
    return 0 if report.outlook is not None or not arguments.verifier else 1


async def _examine(arguments: argparse.Namespace, say: Any) -> Report:
    profile = PROFILES.get(arguments.profile or "")
    path = arguments.model or demo_model_path()
    context = profile.context if profile else arguments.context
    watts = arguments.watts or (profile.watts if profile else Watts())
    speeds = []
    for threads in _thread_counts(arguments.threads, profile):
        say(f"drafting on {threads} thread{'s' * (threads > 1)}")
        speeds.append(
            await draft_speed(path, threads, context=context, providers=arguments.providers)
        )
    best = min(speeds, key=lambda one: one.token_s)
    facts, notes = facts_of(path), []
    if profile and facts.size_bytes and facts.size_bytes > profile.memory_bytes:
        notes.append(
            f"the model's {facts.size_bytes / 1e9:.1f} GB exceed the "
            f"{profile.memory_bytes / 1e9:.0f} GB of {arguments.profile}"
        )
    if facts.context and facts.context < context:
        notes.append(f"the draft model knows contexts of {facts.context} tokens, not {context}")
    told: dict[str, Any] = {
        "model": facts.name,
        "speeds": speeds,
        "threads": best.threads,
        "context": context,
        "watts": watts,
        "notes": notes,
    }
    if not arguments.verifier:
        notes.append("no verifier was asked: give --verifier HOST:PORT to hear what to expect")
        return Report(**told)
    transport = transport_to(arguments.verifier, credentials(arguments))
    model = load_model(path, threads=best.threads, providers=arguments.providers)
    drafter = drafter_of(model, threads=best.threads, context=context)
    try:
        card = await transport.describe()
        fits = fit(facts, facts_of_card(card, arguments.verifier))
        notes += fits.problems
        if not fits.fits:
            return Report(**told)
        say("a short run with the verifier")
        speaks = model.tokenizer

        def session(drafter: Drafter | None) -> Session:
            return Session(
                transport,
                card,
                fingerprint=speaks.fingerprint,
                drafter=drafter,
                eos_token_ids=speaks.eos_token_ids,
            )

        found = await survey(session, drafter, [encode(speaks, text) for text in PROMPTS], say)
    finally:
        model.close()
        await drafter.close()
        await transport.close()
    outlook = Outlook(
        times=found.measured.times,
        acceptance=found.measured.acceptance,
        objective=Objective(arguments.objective),
        watts=watts,
    )
    return Report(**told, found=found, outlook=outlook)


def _thread_counts(wanted: int | None, profile: Profile | None) -> list[int]:
    """Thread counts to try: powers of two and all that may be used, or the one asked for."""
    if wanted:
        return [wanted]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    most = min(cores or 1, profile.threads if profile else max(default_threads(), cores or 1))
    return sorted({count for count in (1, 2, 4, 8) if count < most} | {most})


def as_json(report: Report) -> Mapping[str, Any]:
    """The report as a JSON object."""
    told: dict[str, Any] = {
        "model": report.model,
        "threads": report.threads,
        "context": report.context,
        "drafting": [
            {
                "threads": one.threads,
                "tokens_per_s": round(1 / one.token_s, 2),
                "token_ms": round(1e3 * one.token_s, 2),
                "prompt_token_ms": round(1e3 * one.prompt_token_s, 3),
            }
            for one in report.speeds
        ],
        "notes": report.notes,
    }
    if report.outlook is None:
        return told
    outlook, times = report.outlook, report.outlook.times
    even, here = outlook.break_even_s(), outlook.at()
    return told | {
        "rtt_ms": round(1e3 * times.rtt, 2),
        "pass_one_token_ms": round(1e3 * times.single, 2),
        "pass_fixed_ms": round(1e3 * times.fixed, 2),
        "pass_each_token_ms": round(1e3 * times.each, 3),
        "draft_ms": round(1e3 * times.draft, 2),
        "acceptance": round(outlook.acceptance.rate, 4),
        "break_even_rtt_ms": None if even is None else round(1e3 * even),
        "expected": here.as_json(),
        "expected_speedup": round(report.over_a_text(here), 3),
        "at_other_rtts": [outlook.at(rtt / 1e3).as_json() for rtt in RTTS_MS],
    }


def lines(report: Report) -> list[str]:
    """The report as text."""
    told = [f"{report.model} drafts here:"]
    told += [
        f"  {one.threads} thread{'s' if one.threads > 1 else ' '}  "
        f"{1 / one.token_s:6.1f} tokens/s, {1e3 * one.token_s:.1f} ms each"
        for one in report.speeds
    ]
    watts = f"{report.watts.drafting:g},{report.watts.waiting:g}"
    told.append(
        f"use --threads {report.threads} --context {report.context}, and --watts {watts} with "
        "--objective energy"
    )
    told += report.notes
    if report.outlook is None:
        return told
    outlook, times = report.outlook, report.outlook.times
    here, even = outlook.at(), outlook.break_even_s()
    told += [
        (
            f"verifier: round trip {1e3 * times.rtt:.1f} ms, a pass of one token "
            f"{1e3 * times.single:.1f} ms, of five {1e3 * times.pass_s(5):.1f} ms"
        ),
        (
            f"drafts hold {100 * outlook.acceptance.rate:.0f} times of 100; beside the run one "
            f"took {1e3 * times.draft:.1f} ms"
        ),
        (
            f"expect {report.over_a_text(here):.2f} times the cloud's speed over {TOKENS} tokens "
            f"({here.mode}, {1e3 * here.seconds:.1f} against {1e3 * here.alone_s:.1f} ms a token)"
        ),
        _break_even(even),
        "",
        "   RTT  best mode    speed-up  device's joules a token (alone)",
    ]
    for rtt in RTTS_MS:
        one = outlook.at(rtt / 1e3)
        told.append(
            f"{rtt:4} ms  {one.mode:12} {one.speedup:6.2f}    {one.joules:.2f} "
            f"({one.alone_joules:.2f})"
        )
    return told


def _break_even(even_s: float | None) -> str:
    if even_s is None:
        return "splitting pays at any round trip up to 2 s"
    if not even_s:
        return "splitting pays at no round trip: the cloud alone is as fast"
    return f"splitting pays up to a round trip of {1e3 * even_s:.0f} ms"
