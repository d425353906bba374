"""What names a model: a path that is there, or a hub id. Light, to be judged before torch loads."""

from __future__ import annotations

import re
from pathlib import Path

from draftwire.errors import ModelNotFound

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")


def check_name(source: str) -> None:
    """Raise `ModelNotFound` for a path that isn't there and can't be a hub id."""
    path = Path(source).expanduser()
    if source and path.exists():
        return
    if path.suffix == ".gguf" or not _HUB_ID.fullmatch(source):
        raise ModelNotFound(
            f"there is no {source!r}",
            remedy="give a Hugging Face directory, a .gguf file, or a hub id such as owner/name",
        )
