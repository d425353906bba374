"""How an error ends a call on the wire: a status, and in its trailing metadata what it was."""

from __future__ import annotations

from typing import Any, NoReturn

import grpc

from draftwire.errors import MOST_SAID, DraftwireError


async def abort(context: Any, error: DraftwireError) -> NoReturn:
    """End the call by an error; does not return."""
    metadata: tuple[tuple[str, str | bytes], ...] = (
        ("draftwire-code", error.code),
        ("draftwire-remedy-bin", _clipped(error.remedy, MOST_SAID // 2).encode()),
        ("draftwire-session", error.session_id or ""),
    )
    said = _clipped(error.message, MOST_SAID)
    await context.abort(getattr(grpc.StatusCode, error.status), said, trailing_metadata=metadata)
    raise AssertionError("abort raises")


def _clipped(words: str, most: int) -> str:
    """The words, or what fits of them in `most` bytes of UTF-8.

    On the wire a byte of a message takes up to three. gRPC drops trailers of more than 8 KiB, and
    the client would see another status, without a code: "try again" for a request that can't work.
    """
    return words.encode()[:most].decode(errors="ignore")
