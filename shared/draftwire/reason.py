"""Why a file or an address can't be used."""

from __future__ import annotations

import os


def reason(error: Exception, path: str | os.PathLike[str] = "") -> str:
    """The error in words, without its number, for a message that names `path` itself.

    A file is named only where it is another, as one of a directory.
    """
    if isinstance(error, UnicodeDecodeError):
        return "it is no UTF-8 text"
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    where = error.filename
    if not path or not isinstance(where, str) or where == os.fspath(path):
        return error.strerror
    return f"{where}: {error.strerror}"
