"""What requests share: bodies, callers that go away, and streams of events."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from draftwire.errors import DraftwireError
from edge_client.endpoint.errors import ApiError, Refused, described, plain

T = TypeVar("T")

MAX_BODY_BYTES = 4 << 20


async def json_body(request: Request) -> Any:
    """The body of a request. Raises `Refused` if it is no JSON, or too long.

    What readers of JSON take differently is refused: a name twice in an object, numbers that are
    none, and halves of characters, which no tokenizer takes.
    """
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise plain(413, f"the body is longer than {MAX_BODY_BYTES} bytes", "body_too_long")
    try:
        value = json.loads(body.decode("utf-8-sig"), object_pairs_hook=_named, parse_constant=_odd)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeError:
        raise _no_json("the body is not Unicode, or holds half of a surrogate pair") from None
    except (ValueError, RecursionError):
        raise _no_json("the body is not JSON") from None
    return value


def _named(members: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(members)
    if len(value) < len(members):
        [(twice, _)] = Counter(name for name, _ in members).most_common(1)
        raise _no_json(f"an object of the body has {twice!a} twice")
    return value


def _odd(constant: str) -> float:
    raise _no_json(f"{constant} is no number in JSON")


def _no_json(why: str) -> Refused:
    return plain(400, why, "invalid_json")


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Do `work` unless the caller goes away, upon which it is cancelled.

    When this ends, so has `work`. Raises `ClientDisconnect`.
    """
    doing, leaving = asyncio.create_task(work), asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise ClientDisconnect
        return doing.result()
    finally:
        doing.cancel()
        leaving.cancel()
        await asyncio.gather(doing, leaving, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Events:
    """A stream of server-sent events; the response begins with the first of them."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = False

    async def tell(self, data: Mapping[str, Any] | str) -> None:
        """Send an event."""
        if not self.begun:
            self.begun = True
            kinds = [
                (b"content-type", b"text/event-stream; charset=utf-8"),
                (b"cache-control", b"no-store"),
            ]
            await self._send({"type": "http.response.start", "status": 200, "headers": kinds})
        text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
        body = f"data: {text}\n\n".encode(errors="replace")
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def end(self) -> None:
        """End the response."""
        await self._send({"type": "http.response.body", "body": b""})


class EventResponse(Response):
    """What `write` tells, as it tells it. What fails before its first event gets a status."""

    def __init__(self, write: Callable[[Events], Awaitable[None]]) -> None:
        super().__init__()
        self._write = write

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        events = Events(send)
        try:
            await unless_gone(receive, self._told(events))
        except ClientDisconnect:
            return
        except (Refused, DraftwireError) as error:
            failed = api_error(error)
            if not events.begun:
                await failure(failed)(scope, receive, send)
                return
            await events.tell(failed.body)
        await events.end()

    async def _told(self, events: Events) -> None:
        await self._write(events)


def api_error(error: Refused | DraftwireError) -> ApiError:
    """What the caller is told of an error."""
    return error.error if isinstance(error, Refused) else described(error)


def failure(error: ApiError) -> Response:
    """An error as a response."""
    return JSONResponse(error.body, status_code=error.status)
