"""What this machine has, and what a model would need of it."""

from __future__ import annotations

import importlib.util
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoConfig, PreTrainedConfig

from cloud_verifier import cpu_linear
from cloud_verifier.attention import NAMES, Need, choose_backend, refusal, varlen
from cloud_verifier.loading import DTYPES
from cloud_verifier.outline import outline
from cloud_verifier.rollback import check_rollback
from cloud_verifier.rotary import longest_context
from draftwire.errors import ModelNotFound
from draftwire.reason import reason

PACKAGES = {
    "torchao": "quantized weights",
    "llguidance": "structured output",
    "prometheus_client": "--metrics",
    "opentelemetry": "--otlp",
    "triton": "flex attention on CUDA",
}
"""Optional packages and what they serve."""

_USUAL_HEADS = frozenset({(128, 128)})

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


def examine(source: str | None = None) -> Report:
    """Look at this machine, and at the model of `source` if given: its configuration only.

    Raises `ModelNotFound`, and the errors of `rollback.check_rollback`.
    """
    devices = tuple(_devices())
    return Report(
        python=platform.python_version(),
        torch=torch.__version__,
        cuda=torch.version.cuda,
        flash_attention=varlen.activated(),
        threads=torch.get_num_threads(),
        onednn_linear=cpu_linear.available(),
        packages={name: importlib.util.find_spec(name) is not None for name in PACKAGES},
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
            weights = size.weights_bytes(need.dtype)
            per_token = size.kv_bytes_per_token(need.dtype)
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
        max_context=longest_context(text, source)[0],
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
            f"{source} has no configuration that can be read: {reason(error, source)}",
            remedy="give a Hugging Face directory, a .gguf file, or a hub id such as owner/name",
        ) from error
    return config
