"""`draftwire-verifier doctor`: what `inspection` finds, as text or JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict

from cloud_verifier.inspection import PACKAGES, Model, Report, examine


def doctor(arguments: argparse.Namespace) -> int:
    """Print the report, as text or with `--json`; returns the exit status."""
    report = examine(arguments.model)
    print(json.dumps(asdict(report), indent=2) if arguments.json else "\n".join(lines(report)))
    return 0


def lines(report: Report) -> Iterator[str]:
    """The report as text."""
    built = f"for CUDA {report.cuda}" if report.cuda else "without CUDA"
    yield f"Python {report.python}, torch {report.torch} built {built}, {report.threads} threads"
    used = "yes" if report.onednn_linear else "no: this build of torch lacks them"
    yield f"oneDNN linear layers for float32 on the CPU: {used}"
    if report.flash_attention is not None:
        yield f"FlashAttention activated: {report.flash_attention}"
    for device in report.devices:
        yield ""
        yield f"{device.device}: {device.name}"
        yield f"  memory {_gb(device.memory_bytes)}, {_gb(device.free_bytes)} free"
        yield f"  computes in {', '.join(device.dtypes)}"
        for name, reason in device.attention.items():
            yield f"  attention {name}: {reason or 'yes'}"
    yield ""
    for name, use in PACKAGES.items():
        yield f"{name}: {'installed' if report.packages[name] else 'not installed'} ({use})"
    if report.model is not None:
        yield ""
        yield from _model_lines(report.model)


def _model_lines(model: Model) -> Iterator[str]:
    yield (
        f"{model.source}: {model.kind}, {model.parameters / 1e9:.3g} billion parameters stored as "
        f"{model.dtype}, context up to {model.max_context}"
    )
    for fit in model.fits:
        yield (
            f"  on {fit.device} in {fit.dtype}: weights {_gb(fit.weights_bytes)}, "
            f"KV {fit.kv_bytes_per_token} bytes a token; "
            + (f"KV of {fit.kv_tokens} tokens fits" if fit.kv_tokens > 0 else "does not fit")
        )
        refused = "".join(f"; not {name}: {why}" for name, why in fit.refused.items())
        yield f"    attention {fit.attention}{refused}"


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
