"""Loads a target's weights and says exactly which target it is.

A source is a Hugging Face directory, a `.gguf` file (converted once, `gguf_conversion`), or a hub
id such as `owner/name` or `owner/name@revision`. Weights come from safetensors only, and code
from the model's repository is never run.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from cloud_verifier.gguf_conversion import convert, file_digest, without_progress_bars
from cloud_verifier.rollback import check_rollback
from draftwire.errors import InvalidRequest, ModelLoadFailed, ModelNotFound
from draftwire.noise import NOISE_VERSION
from draftwire.types import TargetIdentity
from draftwire.vocab import fingerprint

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")
_HUB_FILES = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model", "*.txt"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTarget:
    """A model ready to run and who it is. `max_context` is the model's own, in tokens."""

    model: PreTrainedModel
    identity: TargetIdentity
    vocabulary_size: int
    max_context: int


def load_target(
    source: str,
    *,
    dtype: str = "auto",
    device: str = "auto",
    name: str | None = None,
    progress: Callable[[str], None] | None = None,
    inspect: Callable[[PreTrainedConfig, torch.device, torch.dtype], None] | None = None,
) -> LoadedTarget:
    """Load weights from `source` (see the module) in evaluation mode.

    `dtype` "auto" is the stored one, and float32 for a `.gguf`; `device` "auto" is CUDA where
    there is one, else the CPU. `name` is how the model is served, by default after its source.
    `progress` is told what is being done, in words; the same goes to the log. `inspect` gets
    configuration, device and dtype before weights are loaded, and may raise.

    Raises `ModelNotFound`, `ModelLoadFailed`, `MissingDependency`, `CannotRollBack`, and
    `InvalidRequest` for an unknown `dtype` or `device`.
    """
    report = _reporter(progress)
    torch_device, torch_dtype = _device(device), _dtype(dtype)
    directory = locate(source, progress=report)
    report(f"loading {source}")
    config = _load_config(directory, source)
    check_rollback(config, source)
    if inspect is not None:
        stored = config.dtype if isinstance(config.dtype, torch.dtype) else torch.float32
        inspect(config, torch_device, DTYPES.get(dtype, stored))
    weights = sorted(directory.glob("*.safetensors"))
    if not weights:
        raise ModelLoadFailed(
            f"{source} has no .safetensors file",
            remedy="save the model with transformers' save_pretrained, which writes safetensors",
        )
    try:
        with without_progress_bars():
            model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
                directory,
                config=config,
                dtype=torch_dtype,
                use_safetensors=True,
                trust_remote_code=False,
                device_map=None if torch_device.type == "cpu" else {"": torch_device},
            )
        model.train(False)
        mark = vocabulary_fingerprint(load_tokenizer(directory))
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise ModelLoadFailed(
            f"{source} can't be loaded: {error}",
            remedy="check that its files are complete and that it fits in memory",
        ) from error
    text = config.get_text_config(decoder=True)
    used = str(model.dtype).removeprefix("torch.")
    return LoadedTarget(
        model=model,
        identity=TargetIdentity(
            model=name or _served_name(source),
            digest=_digest([*weights, directory / "config.json"], used),
            dtype=used,
            vocabulary_fingerprint=mark,
            noise_version=NOISE_VERSION,
            eos_token_ids=_eos(model),
        ),
        vocabulary_size=text.vocab_size,
        max_context=text.max_position_embeddings,
    )


def locate(source: str, *, progress: Callable[[str], None]) -> Path:
    """The local Hugging Face directory behind a source; converts or downloads if it must."""
    path = Path(source).expanduser()
    if source and path.is_dir():
        return path
    if path.is_file():
        return convert(path, progress=progress)
    if path.suffix == ".gguf" or not _HUB_ID.fullmatch(source):
        raise ModelNotFound(
            f"there is no {source!r}",
            remedy="give a Hugging Face directory, a .gguf file, or a hub id such as owner/name",
        )
    repository, _, revision = source.partition("@")
    progress(f"looking for {source} in the local cache and on the hub")
    try:
        return Path(
            snapshot_download(repository, revision=revision or None, allow_patterns=_HUB_FILES)
        )
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as error:
        raise ModelNotFound(
            f"the hub has no model {source}, or it needs a login",
            remedy="check the name; for a gated model set HF_TOKEN",
        ) from error
    except (LocalEntryNotFoundError, EntryNotFoundError, OSError) as error:
        raise ModelNotFound(
            f"{source} is neither a local path nor in the local hub cache, and the hub can't be "
            "reached",
            remedy="give a local directory or .gguf file, or try again online",
        ) from error


def load_tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a Hugging Face directory."""
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        directory, trust_remote_code=False
    )
    return tokenizer


def vocabulary_fingerprint(tokenizer: PreTrainedTokenizerBase) -> bytes:
    """`draftwire.vocab.fingerprint` of a Hugging Face tokenizer."""
    strings: Sequence[str | None] = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    # What a tokenizer puts before a prompt shows on the empty one.
    prefix = tokenizer("", add_special_tokens=True)["input_ids"]
    bos = tokenizer.bos_token_id if tokenizer.bos_token_id in prefix[:1] else None
    return fingerprint(strings, bos=bos, eos=tokenizer.eos_token_id)


def _reporter(progress: Callable[[str], None] | None) -> Callable[[str], None]:
    def report(message: str) -> None:
        _log.info("%s", message)
        if progress is not None:
            progress(message)

    return report


def _device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        raise InvalidRequest(
            f"device {device!r} can't be used: {error}", remedy="auto, cpu, cuda or cuda:<n>"
        ) from error
    return chosen


def _dtype(dtype: str) -> torch.dtype | str:
    if dtype != "auto" and dtype not in DTYPES:
        raise InvalidRequest(
            f"dtype {dtype!r} is unknown", remedy=f"choose auto, {', '.join(DTYPES)}"
        )
    return DTYPES.get(dtype, "auto")


def _load_config(directory: Path, source: str) -> PreTrainedConfig:
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(directory, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise ModelLoadFailed(
            f"{source} has no usable configuration: {error}",
            remedy="give a Hugging Face model directory; code from a repository is never run",
        ) from error
    return config


def _served_name(source: str) -> str:
    path = Path(source)
    return path.stem if path.suffix == ".gguf" else path.name.partition("@")[0] or source


def _eos(model: PreTrainedModel) -> tuple[int, ...]:
    """Ids that end a generation; generation config before model config, one id or many."""
    generation = getattr(model.generation_config, "eos_token_id", None)
    ids = generation if generation is not None else getattr(model.config, "eos_token_id", None)
    if ids is None:
        return ()
    return (ids,) if isinstance(ids, int) else tuple(ids)


def _digest(files: Sequence[Path], dtype: str) -> bytes:
    """16 bytes over the files' content, the dtype in use and the noise version."""
    # Hashing releases the interpreter lock, so the shards of a large model share the cores.
    with ThreadPoolExecutor(max_workers=4) as pool:
        parts = list(pool.map(file_digest, files))
    digest = hashlib.blake2b(f"{dtype} {NOISE_VERSION}".encode(), digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.digest()
