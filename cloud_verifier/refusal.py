"""How an error ends a call on the wire: a status, and in its trailing metadata what it was."""

from __future__ import annotations

from typing import Any, NoReturn

import grpc

from draftwire.errors import DraftwireError


async def abort(context: Any, error: DraftwireError) -> NoReturn:
    """End the call by an error; does not return."""
    metadata: tuple[tuple[str, str | bytes], ...] = (
        ("draftwire-code", error.code),
        ("draftwire-remedy-bin", error.remedy.encode()),
        ("draftwire-session", error.session_id or ""),
    )
    await context.abort(
        getattr(grpc.StatusCode, error.status), error.message, trailing_metadata=metadata
    )
    raise AssertionError("abort raises")
