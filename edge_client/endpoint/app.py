"""The HTTP application: which path does what."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from draftwire.errors import DraftwireError, InternalError, ModelNotFound, RequestError
from draftwire.types import ModelCard
from edge_client.client import AsyncEdgeClient
from edge_client.endpoint.errors import Refused, busy, described, plain
from edge_client.endpoint.generation import run, streams_of
from edge_client.endpoint.guard import Guard
from edge_client.endpoint.http import (
    EventResponse,
    Events,
    api_error,
    failure,
    json_body,
    unless_gone,
)
from edge_client.endpoint.live import LiveAnswer
from edge_client.endpoint.requests import Asked, chat_request, completion_request
from edge_client.endpoint.responses import ChatShape, Envelope, Shape, TextShape
from edge_client.results import Delta, Token

MAX_REQUESTS = 64

PAGE = Path(__file__).with_name("page.html")

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The page needs nothing but itself and the endpoint, and no other page may show it."""


class Endpoint:
    """Answers requests with what a client generates.

    `name` is the model's, if not the verifier's own for it. At most `max_requests` are under way
    at once; those that find no drafter free wait for one in the order in which they came.
    """

    def __init__(
        self, client: AsyncEdgeClient, *, name: str | None = None, max_requests: int = MAX_REQUESTS
    ) -> None:
        self._client = client
        self._name = name
        self._max_requests = max_requests
        self._requests = 0

    async def chat(self, request: Request) -> Response:
        """`POST /v1/chat/completions`."""
        asked = chat_request(await json_body(request))
        shape = ChatShape(self._client.tokenizer, logprobs=asked.logprobs)
        return await self._answer(request, asked, shape)

    async def complete(self, request: Request) -> Response:
        """`POST /v1/completions`."""
        asked = completion_request(await json_body(request))
        shape = TextShape(self._client.tokenizer, logprobs=asked.logprobs)
        return await self._answer(request, asked, shape)

    async def live(self, request: Request) -> Response:
        """`POST /draftwire/chat`, for the page."""
        asked = chat_request(await json_body(request))

        async def write(events: Events) -> None:
            with self._admitted(asked):
                card = await self._begin(asked)
                await LiveAnswer(self._client, asked).tell(card, self._name_in(card), events)

        return EventResponse(write)

    async def page(self, request: Request) -> Response:  # noqa: ARG002
        """`GET /`."""
        return HTMLResponse(PAGE.read_bytes(), headers={"content-security-policy": _POLICY})

    async def models(self, request: Request) -> Response:  # noqa: ARG002
        """`GET /v1/models`."""
        card = await self._client.card()
        return JSONResponse({"object": "list", "data": [self._model(card)]})

    async def model(self, request: Request) -> Response:
        """`GET /v1/models/{model}`."""
        card = await self._client.card()
        if (name := request.path_params["model"]) != self._name_in(card):
            raise _not_here(name, self._name_in(card))
        return JSONResponse(self._model(card))

    async def health(self, request: Request) -> Response:  # noqa: ARG002
        """`GET /healthz`: 200 if the verifier answers, else 503."""
        try:
            card = await self._client.card(again=True)
        except DraftwireError as error:
            return JSONResponse({"status": "unavailable", "reason": str(error)}, status_code=503)
        return JSONResponse({"status": "ok", "model": self._name_in(card)})

    async def _answer(self, request: Request, asked: Asked, shape: Shape) -> Response:
        if asked.stream:
            return EventResponse(partial(self._stream, asked, shape))
        with contextlib.suppress(ClientDisconnect):
            return await unless_gone(request.receive, self._whole(asked, shape))
        return Response(status_code=499)  # nobody is there to read it

    async def _whole(self, asked: Asked, shape: Shape) -> Response:
        tokens: dict[int, list[Token]] = {}

        async def keep(index: int, delta: Delta) -> None:
            tokens.setdefault(index, []).extend(delta.tokens)

        with self._admitted(asked):
            card = await self._begin(asked)
            envelope = Envelope(shape, self._name_in(card), card)
            summaries = await run(streams_of(self._client, asked), keep)
        choices = [
            shape.whole(index, tokens.get(index, []), summary)
            for index, summary in enumerate(summaries)
        ]
        return JSONResponse(envelope.whole(choices, summaries, asked.n))

    async def _stream(self, asked: Asked, shape: Shape, events: Events) -> None:
        opened = set[int]()

        async def tell(index: int, delta: Delta) -> None:
            if index not in opened:
                opened.add(index)
                await chunk(shape.opening(index))
            await chunk(shape.piece(index, delta))

        async def chunk(choice: dict[str, object] | None) -> None:
            if choice is not None:
                await events.tell(envelope.chunk(choice, with_usage=asked.include_usage))

        with self._admitted(asked):
            card = await self._begin(asked)
            envelope = Envelope(shape, self._name_in(card), card)
            summaries = await run(streams_of(self._client, asked), tell)
        for index, summary in enumerate(summaries):
            await chunk(shape.closing(index, summary))
        if asked.include_usage:
            await events.tell(envelope.last(summaries, asked.n))
        await events.tell("[DONE]")

    @contextlib.contextmanager
    def _admitted(self, asked: Asked) -> Iterator[None]:
        """Count a request in. What the verifier says of a grammar is said of its parameter."""
        if self._requests >= self._max_requests:
            raise busy(self._max_requests)
        self._requests += 1
        try:
            yield
        except RequestError as error:
            about = "grammar" in str(error)
            raise Refused(described(error, asked.grammar if about else None)) from error
        finally:
            self._requests -= 1

    async def _begin(self, asked: Asked) -> ModelCard:
        """The verifier's card, if it serves what is asked for."""
        card = await self._client.card()
        if asked.model is not None and asked.model != self._name_in(card):
            raise _not_here(asked.model, self._name_in(card))
        asked.check_tokens(card.vocabulary_size)
        return card

    def _name_in(self, card: ModelCard) -> str:
        return self._name or card.target.model

    def _model(self, card: ModelCard) -> dict[str, object]:
        name = self._name_in(card)
        return {"id": name, "object": "model", "created": 0, "owned_by": "draftwire"}


def _not_here(name: str, served: str) -> ModelNotFound:
    return ModelNotFound(f"the model {name!r} is not served here", remedy=f"use {served!r}")


def build_app(endpoint: Endpoint, hosts: Collection[str] = ()) -> Starlette:
    """The application; with `hosts` it answers under no other name."""
    return Starlette(
        routes=[
            Route("/v1/chat/completions", endpoint.chat, methods=["POST"]),
            Route("/v1/completions", endpoint.complete, methods=["POST"]),
            Route("/v1/models", endpoint.models),
            Route("/v1/models/{model:path}", endpoint.model),
            Route("/healthz", endpoint.health),
            Route("/draftwire/chat", endpoint.live, methods=["POST"]),
            Route("/", endpoint.page),
        ],
        middleware=[Middleware(Guard, hosts=hosts)],
        exception_handlers={
            Refused: _refused,
            DraftwireError: _refused,
            HTTPException: _no_such_path,
            Exception: _fault,
        },
    )


def _refused(request: Request, error: Exception) -> Response:  # noqa: ARG001
    assert isinstance(error, Refused | DraftwireError)  # noqa: S101 (registered for these)
    return failure(api_error(error))


def _no_such_path(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101
    what = "not found" if error.status_code == 404 else error.detail.lower()
    return failure(
        plain(error.status_code, f"{request.method} {request.url.path}: {what}", "no_route").error
    )


def _fault(request: Request, error: Exception) -> Response:  # noqa: ARG001
    return failure(described(InternalError("the endpoint failed", remedy="see its log")))
