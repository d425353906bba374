"""What `draftwire doctor` found, as text or JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edge_client.choice import Watts
from edge_client.outlook import Expected, Outlook
from edge_client.survey import TOKENS, DraftSpeed, Survey

RTTS_MS = (0, 20, 60, 150, 300)
"""Round trips to say what to expect at, besides the one measured."""


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
