"""Loads a target's weights and says exactly which target it is.

Where the files come from: `model_source`. Weights come from safetensors only, and code that came
with a model is run only where the caller trusts it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from cloud_verifier import quantization
from cloud_verifier.deterministic import MARK, check_device
from cloud_verifier.gguf_conversion import file_digest, without_progress_bars
from cloud_verifier.model_source import ModelSource, check_code, locate
from cloud_verifier.pieces import token_pieces
from cloud_verifier.progress import Report, megabytes, step
from cloud_verifier.rollback import check_rollback
from cloud_verifier.rotary import longest_context
from draftwire.errors import InvalidRequest, ModelLoadFailed
from draftwire.noise import NOISE_VERSION
from draftwire.reason import reason
from draftwire.types import TargetIdentity
from draftwire.vocab import fingerprint

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTarget:
    """A model ready to run and who it is.

    `max_context` is the model's own, in tokens, and `context_reason` why it is less than the
    model states. `revision` is the hub's commit, None for what is not from a hub. `deterministic`:
    passes are to be as the module of that name has them, which `identity` says. `pieces` are the
    bytes of each token's text, None where they can't be told; `encode` tokenizes a text by itself.
    """

    model: PreTrainedModel
    identity: TargetIdentity
    vocabulary_size: int
    max_context: int
    context_reason: str = ""
    revision: str | None = None
    deterministic: bool = False
    pieces: Sequence[bytes] | None = None
    encode: Callable[[str], Sequence[int]] | None = None


def load_target(
    source: str,
    *,
    dtype: str = "auto",
    device: str = "auto",
    quantize: str | None = None,
    trust_remote_code: bool = False,
    deterministic: bool = False,
    name: str | None = None,
    progress: Callable[[str], None] | None = None,
    inspect: Callable[[PreTrainedConfig, torch.device, torch.dtype], None] | None = None,
) -> LoadedTarget:
    """Load weights from `source` (see `model_source`) in evaluation mode.

    `dtype` "auto" is the stored one, and float32 for a `.gguf`; `device` "auto" is CUDA where
    there is one, else the CPU; `quantize` is "int8" or "int4" (see `quantization`). With
    `trust_remote_code`, code in the model's directory or in a pinned revision is run.
    `deterministic` says how passes are to be. `name` is how the model is served, by default after
    its source. `progress` is told what is being done, in words, also from another thread; the same
    goes to the log. `inspect` gets configuration, device and dtype before weights are loaded, and
    may raise.

    Raises `ModelNotFound`, `ModelLoadFailed`, `MissingDependency`, `CannotRollBack`, and
    `InvalidRequest` for an argument that can't be honoured.
    """
    report = _reporter(progress)
    torch_device, torch_dtype = _device(device), _dtype(dtype)
    if deterministic:
        check_device(torch_device)
    if quantize is not None:
        quantization.check(quantize, torch_device)
    found = locate(source, report=report, trust_remote_code=trust_remote_code)
    directory = found.directory
    if trust_remote_code:
        _announce_code(found, source)
    config = _load_config(directory, source, trust_remote_code)
    check_rollback(config, source, trust_remote_code=trust_remote_code)
    if inspect is not None:
        stored = config.dtype if isinstance(config.dtype, torch.dtype) else torch.float32
        inspect(config, torch_device, DTYPES.get(dtype, stored))
    text = config.get_text_config(decoder=True)
    max_context, reason = longest_context(text, source)
    if reason:
        _log.warning("contexts of %s end at %d tokens: %s", source, max_context, reason)
    weights = sorted(directory.glob("*.safetensors"))
    if not weights:
        raise ModelLoadFailed(
            f"{source} has no .safetensors file",
            remedy="save the model with transformers' save_pretrained, which writes safetensors",
        )
    size = megabytes(sum(file.stat().st_size for file in weights))
    with step(report, f"loading {source}, {size}"):
        model, mark, pieces, tokenizer = _read(
            found, source, config, torch_dtype, torch_device, trust_remote_code=trust_remote_code
        )
    used = made_by = str(model.dtype).removeprefix("torch.")
    made_of = [*weights, directory / "config.json", *(found.code if trust_remote_code else ())]
    if quantize is not None:
        with step(report, f"quantizing {source} to {quantize}"):
            made_by = f"{used}+{quantization.quantize(model, quantize, source)}"
        used = f"{used}+{quantize}"
    if deterministic:
        made_by = f"{made_by} {MARK}"
    with step(report, f"computing the digest of {size}"):
        digest = _digest(made_of, made_by)
    return LoadedTarget(
        model=model,
        identity=TargetIdentity(
            model=name or _served_name(source),
            digest=digest,
            dtype=used,
            vocabulary_fingerprint=mark,
            noise_version=NOISE_VERSION,
            eos_token_ids=_eos(model),
        ),
        vocabulary_size=text.vocab_size,
        max_context=max_context,
        context_reason=reason,
        revision=found.revision,
        deterministic=deterministic,
        pieces=pieces,
        encode=partial(tokenizer.encode, add_special_tokens=False),
    )


def _read(
    found: ModelSource,
    source: str,
    config: PreTrainedConfig,
    dtype: torch.dtype | str,
    device: torch.device,
    *,
    trust_remote_code: bool,
) -> tuple[PreTrainedModel, bytes, Sequence[bytes] | None, PreTrainedTokenizerBase]:
    """The model on its device, its vocabulary's fingerprint, its tokens' text, its tokenizer."""
    try:
        with without_progress_bars():
            model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
                found.directory,
                config=config,
                dtype=dtype,
                use_safetensors=True,
                trust_remote_code=trust_remote_code,
                device_map=None if device.type == "cpu" else {"": device},
            )
        tokenizer = load_tokenizer(found.directory, trust_remote_code)
        mark, pieces = vocabulary_fingerprint(tokenizer), token_pieces(tokenizer)
        return model.train(False), mark, pieces, tokenizer
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise ModelLoadFailed(
            f"{source} can't be loaded: {reason(error, source)}",
            remedy="check that its files are complete and that it fits in memory",
        ) from error


def load_tokenizer(directory: Path, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """The tokenizer of a Hugging Face directory."""
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        directory, trust_remote_code=trust_remote_code
    )
    return tokenizer


def vocabulary_fingerprint(tokenizer: PreTrainedTokenizerBase) -> bytes:
    """`draftwire.vocab.fingerprint` of a Hugging Face tokenizer."""
    strings: Sequence[str | None] = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    # What a tokenizer puts before a prompt shows on the empty one.
    prefix = tokenizer("", add_special_tokens=True)["input_ids"]
    bos = tokenizer.bos_token_id if tokenizer.bos_token_id in prefix[:1] else None
    return fingerprint(strings, bos=bos, eos=tokenizer.eos_token_id)


def _reporter(progress: Callable[[str], None] | None) -> Report:
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


def _announce_code(found: ModelSource, source: str) -> None:
    """Say which code will be run, having refused what would be fetched from elsewhere."""
    check_code(found.directory, source)
    names = ", ".join(path.name for path in found.code)
    if names:
        _log.warning("running code that came with %s: %s", source, names)


def _load_config(directory: Path, source: str, trust_remote_code: bool) -> PreTrainedConfig:
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            directory, trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ModelLoadFailed(
            f"{source} has no usable configuration: {reason(error, source)}",
            remedy="give a Hugging Face model directory; code that came with a model is run only "
            "with --trust-remote-code",
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


def _digest(files: Sequence[Path], made_by: str) -> bytes:
    """16 bytes over the files' content, what was made of them, how, and the noise version."""
    # Hashing releases the interpreter lock, so the shards of a large model share the cores.
    with ThreadPoolExecutor(max_workers=4) as pool:
        parts = list(pool.map(file_digest, files))
    digest = hashlib.blake2b(f"{made_by} {NOISE_VERSION}".encode(), digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.digest()
