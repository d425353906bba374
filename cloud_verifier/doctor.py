"""`draftwire-verifier doctor`: what this machine has, and what a model would need of it."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from transformers import AutoConfig, PreTrainedConfig

from cloud_verifier import cpu_linear
from cloud_verifier.attention import NAMES, Need, choose_backend, refusal
from cloud_verifier.loading import DTYPES
from cloud_verifier.outline import outline
from cloud_verifier.rollback import check_rollback
from draftwire.errors import ModelNotFound

_USUAL_HEADS = frozenset({(128, 128)})
_PACKAGES = {
    "torchao": "quantized weights",
    "llguidance": "structured output",
    "prometheus_client": "--metrics",
    "opentelemetry": "--otlp",
    "triton": "flex attention on CUDA",
    "flash_attn_interface": "FlashAttention 3 on compute capability 9.0",
}
# Memory beside weights and KV: activations, logits, the libraries' own.
_SPARE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device, its memory in bytes, and the dtypes it computes in.

    `attention` holds, per back end, why it can't serve a usual model there (None if it can) in
    the first of `dtypes`.
    """

    device: str
    name: str
    memory_bytes: int
    free_bytes: int
    dtypes: tuple[str, ...]
    attention: dict[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What a model takes on a device in one dtype.

    `refused` holds, per attention back end, why it can't serve it. `kv_tokens` fit beside the
    weights in the memory that is free now, less a tenth; negative if the weights don't.
    """

    device: str
    dtype: str
    weights_bytes: int
    kv_bytes_per_token: int
    kv_tokens: int
    attention: str
    refused: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What a configuration says. `dtype` is that of the stored weights."""

    source: str
    kind: str
    parameters: int
    max_context: int
    dtype: str
    fits: tuple[Fit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All of it. `packages` says of optional ones whether they are installed."""

    python: str
    torch: str
    cuda: str | None
    flash_attention: str | None
    threads: int
    onednn_linear: bool
    packages: dict[str, bool]
    devices: tuple[Device, ...]
    model: Model | None


def doctor(arguments: argparse.Namespace) -> int:
    """Print the report, as text or with `--json`; returns the exit status."""
    report = examine(arguments.model)
    print(json.dumps(asdict(report), indent=2) if arguments.json else "\n".join(lines(report)))
    return 0


def examine(source: str | None = None) -> Report:
    """Look at this machine, and at the model of `source` if given: its configuration only.

    Raises `ModelNotFound`, and the errors of `rollback.check_rollback`.
    """
    devices = tuple(_devices())
    return Report(
        python=platform.python_version(),
        torch=torch.__version__,
        cuda=torch.version.cuda,
        flash_attention=_flash_attention(),
        threads=torch.get_num_threads(),
        onednn_linear=cpu_linear.available(),
        packages={name: importlib.util.find_spec(name) is not None for name in _PACKAGES},
        devices=devices,
        model=None if source is None else _model(source, devices),
    )


def _devices() -> Iterator[Device]:
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        free, total = torch.cuda.mem_get_info(index)
        major, minor = torch.cuda.get_device_capability(index)
        properties = torch.cuda.get_device_properties(index)
        yield _device(
            torch.device("cuda", index),
            name=f"{properties.name}, compute capability {major}.{minor}",
            memory=(total, free),
            dtypes=("bfloat16", "float16", "float32") if major >= 8 else ("float16", "float32"),
        )
    capability = torch.backends.cpu.get_cpu_capability()
    yield _device(
        torch.device("cpu"),
        name=f"{platform.machine()}, {os.cpu_count()} cores, {capability}",
        memory=_memory(),
        dtypes=("float32", "bfloat16"),
    )


def _device(
    device: torch.device, *, name: str, memory: tuple[int, int], dtypes: tuple[str, ...]
) -> Device:
    need = Need(device=device, dtype=DTYPES[dtypes[0]], head_sizes=_USUAL_HEADS, softcapped=False)
    return Device(
        device=str(device),
        name=name,
        memory_bytes=memory[0],
        free_bytes=memory[1],
        dtypes=dtypes,
        attention={back_end: refusal(back_end, need) for back_end in NAMES},
    )


def _memory() -> tuple[int, int]:
    """Bytes of main memory, and of it what programs can still get."""
    page = os.sysconf("SC_PAGE_SIZE")
    total = page * os.sysconf("SC_PHYS_PAGES")
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return total, int(line.split()[1]) * 1024
    return total, total


def _flash_attention() -> str | None:
    try:
        from torch.nn.attention import current_flash_attention_impl
    except ImportError:
        return None
    return current_flash_attention_impl()


def _model(source: str, devices: tuple[Device, ...]) -> Model:
    config = _config(source)
    check_rollback(config, source)
    size, text = outline(config), config.get_text_config(decoder=True)
    fits = []
    for device in devices:
        for dtype in device.dtypes:
            need = Need.of(
                config, size.shapes, device=torch.device(device.device), dtype=DTYPES[dtype]
            )
            weights, per_token = (
                size.weights_bytes(need.dtype),
                size.kv_bytes_per_token(need.dtype),
            )
            room = int(device.free_bytes * (1 - _SPARE)) - weights
            reasons = {name: refusal(name, need) for name in NAMES}
            fits.append(
                Fit(
                    device=device.device,
                    dtype=dtype,
                    weights_bytes=weights,
                    kv_bytes_per_token=per_token,
                    kv_tokens=room // per_token,
                    attention=choose_backend("auto", need).name,
                    refused={name: reason for name, reason in reasons.items() if reason},
                )
            )
    return Model(
        source=source,
        kind=config.model_type,
        parameters=size.parameters,
        max_context=text.max_position_embeddings,
        dtype=str(config.dtype or torch.float32).removeprefix("torch."),
        fits=tuple(fits),
    )


def _config(source: str) -> PreTrainedConfig:
    path = Path(source).expanduser()
    repository, _, revision = source.partition("@")
    try:
        config: PreTrainedConfig
        if path.suffix == ".gguf":
            config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
        elif path.exists():
            config = AutoConfig.from_pretrained(path, trust_remote_code=False)
        else:
            config = AutoConfig.from_pretrained(
                repository, revision=revision or None, trust_remote_code=False
            )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ModelNotFound(
            f"{source} has no configuration that can be read: {error}",
            remedy="give a Hugging Face directory, a .gguf file, or a hub id such as owner/name",
        ) from error
    return config


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
    for name, use in _PACKAGES.items():
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
