"""Keeps web pages of others away from the endpoint.

Any page that a browser shows can send requests to this machine, and one whose name is made to
resolve to it could read the answers. Browsers say whose page it was, and under which name.
"""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from edge_client.endpoint.errors import plain
from edge_client.endpoint.http import failure


class Guard:
    """Serves requests for one of the `hosts`, or for any without them, that are no other page's."""

    def __init__(self, app: ASGIApp, hosts: Collection[str] = ()) -> None:
        self._app = app
        self._hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it with 403."""
        if scope["type"] == "http" and (why := self._objection(Headers(scope=scope))):
            await failure(plain(403, why, "forbidden").error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _objection(self, headers: Headers) -> str:
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._hosts and _split(f"//{host}").hostname not in self._hosts:
            return f"the endpoint is not known as {host!r}"
        if origin is not None and _split(origin).netloc != host:
            return f"a page of {origin} may not use the endpoint"
        return ""


def _split(url: str) -> SplitResult:
    """The parts of a URL; none if it is malformed."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")
