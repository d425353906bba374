"""Text on a terminal: drafted tokens tinted, corrections standing out, one closing line."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from draftwire.printable import printable
from edge_client.branch import Origin
from edge_client.results import Delta, Summary

STYLES = {Origin.ACCEPTED: "green", Origin.CORRECTED: "bold yellow underline", Origin.CLOUD: ""}

LEGEND = Text.assemble(
    ("drafted here", STYLES[Origin.ACCEPTED]),
    " · ",
    ("corrected by the target", STYLES[Origin.CORRECTED]),
    " · the target's own",
)


def show(console: Console, delta: Delta) -> None:
    """Write a delta where the cursor is; as it is, byte for byte, where that is no terminal."""
    if not console.is_terminal:
        console.file.write(delta.text)
        console.file.flush()
        return
    parts = [(on_screen(token.text), STYLES[token.origin]) for token in delta.tokens]
    rest = delta.text[sum(len(token.text) for token in delta.tokens) :]
    if parts or rest:
        text = Text.assemble(*parts, on_screen(rest))
        console.print(text, end="", soft_wrap=True, highlight=False)
        console.file.flush()


def on_screen(text: str) -> str:
    """What a terminal is given of a model's text."""
    return printable(text, keep="\n\t")


def remark(console: Console, line: str, style: str = "dim") -> None:
    """Print a line about the text; its length is the terminal's affair."""
    console.print(line, style=style, soft_wrap=True, highlight=False, markup=False)


def closing_line(summary: Summary) -> str:
    """How the generation went, in one line."""
    drafts = f"α {summary.alpha:.2f} · K {summary.k_mean:.1f} · " if summary.drafted else ""
    alone = (
        f"{summary.unverified} drafted offline, {summary.retracted} retracted · "
        if summary.unverified
        else ""
    )
    return (
        f"{len(summary.token_ids)} tokens, {summary.tokens_per_s:.1f}/s · "
        f"τ {summary.tau:.2f} · {drafts}{alone}"
        f"TTFT {summary.ttft_ms:.0f} ms · TPOT {summary.tpot_ms:.1f} ms · "
        f"RTT {summary.rtt_ms:.1f} ms · {summary.bytes.up} B up, {summary.bytes.down} B down · "
        f"{summary.finish_reason.value}{' · typical: lossy' if summary.lossy else ''}"
    )


def _logprobs(summary: Summary) -> dict[str, object]:
    """For each token its log-probability and those of the likeliest ids, where asked for."""
    if not summary.logprobs:
        return {}
    told = [
        {
            "logprob": round(one.logprob, 6),
            "top": [
                [token, round(value, 6)]
                for token, value in zip(one.top_tokens, one.top_logprobs, strict=True)
            ],
        }
        for one in summary.logprobs
    ]
    return {"logprobs": told}


def as_json(summary: Summary) -> dict[str, object]:
    """The summary as a JSON object."""
    return {
        "text": summary.text,
        "token_ids": list(summary.token_ids),
        **_logprobs(summary),
        "finish_reason": summary.finish_reason.value,
        "seed": summary.seed,
        "verify_mode": summary.verify_mode.value,
        "lossy": summary.lossy,
        "tokens_per_s": round(summary.tokens_per_s, 3),
        "rounds": summary.rounds,
        "drafted": summary.drafted,
        "accepted": summary.accepted,
        "alpha": round(summary.alpha, 4),
        "tau": round(summary.tau, 4),
        "k_mean": round(summary.k_mean, 3),
        "ttft_ms": round(summary.ttft_ms, 2),
        "tpot_ms": round(summary.tpot_ms, 3),
        "rtt_ms": round(summary.rtt_ms, 3),
        "streams": summary.streams,
        "unverified": summary.unverified,
        "retracted": summary.retracted,
        "bytes_up": summary.bytes.up,
        "bytes_down": summary.bytes.down,
        "payload_bytes_per_token": round(
            (summary.bytes.drafts_up + summary.bytes.verdicts_down)
            / max(1, len(summary.token_ids)),
            3,
        ),
    }
