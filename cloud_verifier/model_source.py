"""Where a model's files are: a local directory, a `.gguf` file, or a repository on a hub.

A hub id is `owner/name` or `owner/name@revision`. A branch or tag, or no revision at all, may
name other files tomorrow: it is resolved to the commit it stands for now, which the log states.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from cloud_verifier.gguf_conversion import convert
from cloud_verifier.model_name import check_name
from cloud_verifier.progress import Report
from draftwire.errors import InvalidRequest, ModelLoadFailed, ModelNotFound

_COMMIT = re.compile(r"[0-9a-f]{40}")
_FILES = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model", "*.txt"]
_CODE = "*.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A local Hugging Face directory, and the hub's commit that it holds, if it is from there."""

    directory: Path
    revision: str | None = None

    @property
    def code(self) -> list[Path]:
        """Program files that came with the weights."""
        return sorted(self.directory.rglob(_CODE))


def locate(source: str, *, report: Report, trust_remote_code: bool = False) -> ModelSource:
    """Find a model's files; convert or download them if need be.

    Code of a hub repository is fetched with `trust_remote_code` only. Raises `ModelNotFound`,
    the errors of `gguf_conversion.convert`, and `InvalidRequest` for code from the hub that is
    not pinned to a commit.
    """
    path = Path(source).expanduser()
    if source and path.is_dir():
        return ModelSource(directory=path)
    if path.is_file():
        return ModelSource(directory=convert(path, progress=report))
    check_name(source)
    return _from_hub(source, report, code=trust_remote_code)


def _from_hub(source: str, report: Report, *, code: bool) -> ModelSource:
    repository, _, wanted = source.partition("@")
    pinned = _COMMIT.fullmatch(wanted) is not None
    if code and not pinned:
        raise InvalidRequest(
            f"{source} names no commit, and code that may change is not run",
            remedy=f"read the code of one commit and give {repository}@<its 40 digits>",
        )
    report(f"looking for {source} in the local cache and on the hub")
    try:
        directory = Path(
            snapshot_download(
                repository,
                revision=wanted or None,
                allow_patterns=[*_FILES, _CODE] if code else _FILES,
            )
        )
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as error:
        raise ModelNotFound(
            f"the hub has no model {source}, or it needs a login",
            remedy="check name and revision; for a gated model set HF_TOKEN",
        ) from error
    except (LocalEntryNotFoundError, EntryNotFoundError, OSError) as error:
        raise ModelNotFound(
            f"{source} is neither a local path nor in the local hub cache, and the hub can't be "
            "reached",
            remedy="give a local directory or .gguf file, or try again online",
        ) from error
    revision = directory.name  # the cache keeps every commit in a directory of its name
    if not pinned:
        report(f"{source} is now at {revision}; {repository}@{revision} names it for good")
    return ModelSource(directory=directory, revision=revision)


def check_code(directory: Path, name: str) -> None:
    """Raise `ModelLoadFailed` if the directory's configuration has code fetched from elsewhere.

    Such a reference, `owner/name--module.Class`, follows the other repository's newest commit.
    """
    for file in ("config.json", "tokenizer_config.json"):
        try:
            classes = json.loads((directory / file).read_text(encoding="utf-8")).get("auto_map")
        except (OSError, ValueError, AttributeError):
            continue  # loading says what is wrong with it
        if "--" in json.dumps(classes):
            raise ModelLoadFailed(
                f"{file} of {name} refers to code in another repository",
                remedy="use a copy of the model that holds its code",
            )
