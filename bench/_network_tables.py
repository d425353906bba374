"""Tables of the benchmark over networks, in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bench._network_record import Record
from bench._network_stats import CellFigures, Setting, alone, cells, texts

_HEAD = (
    "| setting | tokens/s | × cloud-alone | TTFT | TPOT | token gap p50, p95 | α | τ "
    "| bytes | target tokens |\n|---|---|---|---|---|---|---|---|---|---|"
)
FLOWING_HEAD = (
    "| 60 ms away, greedy | best that flows | over itself 1 ms away | over the best that waits "
    "| over cloud-alone |\n|---|---|---|---|---|"
)
LEGEND = """\
Tokens/s are from request to last token: median, and least and greatest of the repetitions; the
ratio is to cloud-alone in the same repetition. TTFT (time to first token), TPOT (time per further
token) and the gaps between tokens are in ms; tokens that one verdict brings have no gap. α is the
share of judged drafts that held, τ tokens per pass. Bytes are payload both ways, prompt included,
and target tokens are rows of the verifier's passes, prompt apart; both are per committed token."""


def report(record: Record) -> str:
    """All tables of a record, and what it was made on."""
    form, head = record.form, record.head
    others = [max(run["others"], default=0.0) for run in record.runs if "others" in run]
    about = (
        f"{head['model']}; {head['machine']}, {head['cores']} cores, a core a side; "
        f"{form.tokens} tokens a text, {form.repetitions} repetitions. "
        f"Others took {statistics.median(others or [0.0]):.1%} of a core (median over runs; "
        f"at most {max(others, default=0.0):.0%})."
    )
    parts = [about, LEGEND, *map(_cell, cells(record))]
    if without := alone(record):
        parts.append(_alone(record, without))
    return "\n\n".join(parts) + "\n"


def virtual(lines: Sequence[Mapping[str, Any]]) -> str:
    """The matrix on virtual time (`bench.controller --json`), in ms a token."""
    rows = [
        "| speeds | network | α | T | best fixed | ms | cloud-alone | controller | × best | off |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for line in lines:
        if "speeds" in line:
            fixed = line["fixed"]
            rows.append(
                f"| {line['speeds']} | {line['profile']} | {line['rate']:g} "
                f"| {line['temperature']:g} | {line['best']} | {fixed[line['best']]:.1f} "
                f"| {fixed['cloud-alone']:.1f} | {line['adaptive']:.1f} | {line['ratio']:.3f} "
                f"| {line['off']:.1%} |"
            )
    claims = ["| | measured | claimed |", "|---|---|---|"]
    claims += [
        f"| {line['claim']} | {line['value']:.3f} | ≤ {line['limit']:g} |"
        for line in lines
        if "claim" in line
    ]
    return "\n\n".join("\n".join(one) for one in (claims, _flowing(lines), rows)) + "\n"


def _flowing(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """What drafts that flow gain 60 ms away, by acceptance, with the passes of a CPU, greedy."""
    fixed = {
        (line["profile"], line["rate"]): line["fixed"]
        for line in lines
        if line.get("speeds") == "cpu" and line["temperature"] == 0
    }
    rows = [FLOWING_HEAD]
    for (profile, rate), far in sorted(fixed.items(), key=lambda item: -item[0][1]):
        near = fixed.get(("lan", rate))
        if profile != "lte" or near is None:
            continue
        best = min((n for n in far if n.startswith(("flowing", "run-on"))), key=lambda n: far[n])
        waiting = min(ms for name, ms in far.items() if name.startswith("waiting"))
        rows.append(
            f"| α {rate:g} | {best} | {near[best] / far[best]:.2f} | {waiting / far[best]:.2f} "
            f"| {far['cloud-alone'] / far[best]:.2f} |"
        )
    return rows


def _cell(one: CellFigures) -> str:
    rows = [_row(setting, one.cloud) for setting in one.settings.values()]
    return f"**{one.cell}**\n\n{_HEAD}\n" + "\n".join(rows)


def _row(setting: Setting, cloud: Setting | None) -> str:
    speeds, rounds, gaps = setting.speeds.values(), setting.rounds, setting.gaps_ms
    ratios = setting.over(cloud) if cloud else []
    payload, rows = setting.per_token("payload_bytes"), setting.per_token("rows")
    return _joined(
        setting.name,
        f"{setting.speed:.1f} ({min(speeds):.1f}–{max(speeds):.1f})",
        f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})" if ratios else "",
        f"{setting.ttft_ms:.0f}",
        f"{setting.tpot_ms:.1f}",
        f"{gaps.median:.0f}, {gaps.p95:.0f}",
        f"{rounds.acceptance_rate:.2f}" if sum(rounds.judged) else "",
        f"{rounds.block_efficiency:.2f}" if rounds.rounds else "",
        "" if payload is None else f"{payload:.1f}",
        "" if rows is None else f"{rows:.2f}",
    )


def _alone(record: Record, settings: Sequence[Setting]) -> str:
    rows = [
        _joined(
            one.name,
            f"{one.speed:.1f} ({min(one.speeds.values()):.1f}–{max(one.speeds.values()):.1f})",
            f"{one.ttft_ms:.0f}",
            f"{one.tpot_ms:.1f}",
            _same(record, one),
        )
        for one in settings
    ]
    head = "| | tokens/s | TTFT | TPOT | texts equal to the split ones |\n|---|---|---|---|---|"
    return (
        "**Without a network**, one thread, greedy. transformers runs the target; its assistant is "
        "the draft model dequantized,\nwhich is the target itself. llama.cpp runs the draft model "
        f"and says what that says.\n\n{head}\n" + "\n".join(rows)
    )


def _same(record: Record, setting: Setting) -> str:
    split = {prompt: found for (prompt, temperature), found in texts(record) if temperature == 0}
    compared = [run for run in setting.runs.values() if run["prompt"] in split]
    same = sum({run["text"]} == split[run["prompt"]] for run in compared)
    return f"{same} of {len(compared)}"


def _joined(*columns: str) -> str:
    return "| " + " | ".join(columns) + " |"
