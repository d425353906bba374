"""The client SDK: text in, text out, drafted here and decided in the cloud.

`AsyncEdgeClient` is for asyncio; `edge_client.sync.EdgeClient` is the same for everyone else.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

from draftwire.credentials import Credentials
from draftwire.errors import InvalidRequest
from draftwire.types import ModelCard, SamplingParams, StopRules
from edge_client.choice import Objective, Watts, as_objective
from edge_client.controller import AdaptiveController
from edge_client.drafter import Drafter, Tokenizer
from edge_client.failover import transport_to
from edge_client.plan import Controller, FixedController, Plan
from edge_client.results import Delta, Summary, Token, summarise
from edge_client.retry import RetryPolicy
from edge_client.session import Generation, Session
from edge_client.text import TextStream
from edge_client.trace import TraceFile
from edge_client.transport import Transport

DEFAULT_MAX_TOKENS = 256

Messages: TypeAlias = Sequence[Mapping[str, str]]
"""A conversation: mappings with `role` ("system", "user", "assistant") and `content`."""


class AsyncStream:
    """A generation as it comes: iterate over its deltas; then `summary` tells how it went.

    A context manager too: leaving it ends the generation if it has not ended, and so does
    cancelling a task that reads it. While one task reads, another may `cancel()`, not `close()`.
    """

    def __init__(
        self,
        client: AsyncEdgeClient,
        session: Callable[[], Awaitable[Session]],
        prompt: Sequence[int],
        controller: Controller,
        sampling: SamplingParams,
        stop: StopRules,
        done: Callable[[Summary], None] | None = None,
    ) -> None:
        self._client = client
        self._done = done
        self._session = session
        self._prompt = prompt
        self._controller = controller
        self._sampling = sampling
        self._stop = stop
        self._generation: Generation | None = None
        self._cancelled = asyncio.Event()
        self._summary: Summary | None = None
        self._deltas = self._run()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        return await anext(self._deltas)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the generation if it has not ended."""
        await self._deltas.aclose()

    def cancel(self) -> None:
        """End the generation; the iterator ends with what is committed by then."""
        self._cancelled.set()
        if self._generation is not None:
            self._generation.cancel()

    async def read(self) -> str:
        """The whole text, when it is there."""
        return "".join([delta.text async for delta in self])

    @property
    def summary(self) -> Summary:
        """How it went. Raises `InvalidRequest` before the end."""
        if self._summary is None:
            raise InvalidRequest("the generation has not ended", remedy="read the stream first")
        return self._summary

    async def _run(self) -> AsyncGenerator[Delta]:
        started = first = last = time.perf_counter()
        decoder = TextStream(self._client.tokenizer)
        tokens: list[Token] = []
        text: list[str] = []
        session = await self._session()
        session.require_idle()  # before waiting for the drafter that it may hold itself
        async with self._client._drafting(self, session):
            self._generation = generation = session.generate(
                self._prompt, self._controller, sampling=self._sampling, stop=self._stop
            )
            if self._cancelled.is_set():
                generation.cancel()
            try:
                async with contextlib.aclosing(generation.run()) as run:
                    async for commits in run:
                        last = time.perf_counter()
                        first = first if tokens else last
                        news = [Token(t, decoder.feed([t]), origin) for t, origin in commits]
                        tokens += news
                        text += [token.text for token in news]
                        yield Delta("".join(token.text for token in news), tuple(news))
                if rest := decoder.flush():
                    text.append(rest)
                    yield Delta(rest, ())
            finally:
                if generation.finished is not None:
                    self._summary = summarise(
                        generation,
                        "".join(text),
                        tokens,
                        self._sampling.seed,
                        (started, first, last),
                    )
                    if self._done is not None:
                        self._done(self._summary)


class AsyncEdgeClient:
    """Generates text with a draft model on this device and a verifier at the other end.

    `verifier` is `HOST:PORT`, several of them separated by commas and used in that order as one
    after the other fails, or a transport; `credentials` are for addresses. Without any, no API key
    is sent, and verifiers elsewhere are reached by TLS and known by the usual authorities.
    `drafters` may be none (the cloud decodes alone), one, or several for as many generations at
    once; a generation waits for a free one. Belongs to the event loop it is first used on. Close
    it, or use it as a context manager.

    `objective` is what tokens should take little of: "latency", the verifier's time ("cost"), or
    the device's "energy", for which `watts` says what it draws. `trace` is a file to which one
    line a round is added that shows why the controller chose as it did (`edge_client.trace`).
    Raises `InvalidRequest` for another objective or a file that can't be written.
    """

    def __init__(
        self,
        verifier: str | Transport,
        tokenizer: Tokenizer,
        drafters: Sequence[Drafter] = (),
        *,
        credentials: Credentials | None = None,
        retry: RetryPolicy | None = None,
        objective: Objective | str = Objective.LATENCY,
        watts: Watts | None = None,
        trace: str | Path | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        if isinstance(verifier, str):
            verifier = transport_to(verifier, credentials)
        self._transport = verifier
        self._drafters = tuple(drafters)
        self._free: asyncio.Queue[Drafter] = asyncio.Queue()
        for drafter in self._drafters:
            self._free.put_nowait(drafter)
        self._retry = retry
        self._streams: set[AsyncStream] = set()
        self._card: ModelCard | None = None
        # What one generation measured serves the next.
        self._adaptive = AdaptiveController(as_objective(objective), watts=watts)
        self._trace = None if trace is None else TraceFile(trace)

    @classmethod
    def from_gguf(
        cls,
        verifier: str | Transport,
        model: str | Path,
        *,
        threads: int | None = None,
        context: int = 4096,
        **options: Any,
    ) -> Self:
        """Draft with a GGUF model in llama.cpp, on `threads` threads (default: one
        for each core, up to four). Further options are those of the class.

        Raises `ModelLoadFailed`, `CannotRollBack`, or `MissingDependency` without the `edge`
        extra.
        """
        from edge_client.drafters.llama import LlamaDrafter
        from edge_client.drafters.llama_model import LlamaModel

        loaded = LlamaModel.load(model)
        try:
            drafter = LlamaDrafter(loaded, threads=threads, context=context)
        finally:
            loaded.close()  # the drafter holds it from here on, for itself and the tokenizer
        return cls(verifier, loaded.tokenizer, [drafter], **options)

    async def card(self) -> ModelCard:
        """What the verifier serves; asked once. Raises `LinkLost` if it can't be reached."""
        if self._card is None:
            self._card = await self._transport.describe()
        return self._card

    def generate(
        self,
        prompt: str | Sequence[int] | None = None,
        *,
        messages: Messages | None = None,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int | None = None,
        stop_token_ids: Sequence[int] = (),
        ignore_eos: bool = False,
        num_draft_tokens: int | None = None,
        session: Session | None = None,
        done: Callable[[Summary], None] | None = None,
    ) -> AsyncStream:
        """Generate after `prompt` (text or token ids) or after `messages` in the chat template.

        `temperature` 0 is greedy. Sampling without a `seed` takes a random one, which the
        summary reports. `num_draft_tokens` fixes K (0: the cloud decodes alone); by default it
        adapts. With a `session` the generation continues its conversation. `done` is called with
        the summary at the end. Raises `InvalidRequest` for values out of range; the stream
        raises what happens on the way.
        """
        if (prompt is None) == (messages is None):
            raise InvalidRequest("give either a prompt or messages")
        if messages is not None:
            tokens = self.tokenizer.encode_chat(messages)
        else:
            tokens = (
                self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt or ())
            )
        if not tokens:
            raise InvalidRequest("the prompt is empty", remedy="give it a token at least")
        sampling = SamplingParams(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seed=secrets.randbits(64) if seed is None else seed,
        )
        stop = StopRules(
            max_tokens=max_tokens, token_ids=tuple(stop_token_ids), ignore_eos=ignore_eos
        )

        async def known() -> Session:
            return session or await self.session()

        controller = self._controller(num_draft_tokens)
        return AsyncStream(self, known, tokens, controller, sampling, stop, done)

    async def session(self) -> Session:
        """A new conversation, for several generations that share their beginning."""
        return Session(
            self._transport,
            await self.card(),
            fingerprint=self.tokenizer.fingerprint,
            eos_token_ids=self.tokenizer.eos_token_ids,
            retry=self._retry,
        )

    def chat(self, system: str | None = None) -> AsyncChat:
        """A conversation of messages: each turn sends only what is new."""
        return AsyncChat(self, system)

    @contextlib.asynccontextmanager
    async def _drafting(self, stream: AsyncStream, session: Session) -> AsyncGenerator[None]:
        """Lend the session a drafter, waiting for a free one unless `stream` is cancelled."""
        lent = asyncio.create_task(self._free.get()) if self._drafters else None
        cancelled = asyncio.create_task(stream._cancelled.wait())
        self._streams.add(stream)
        try:
            if lent is not None:
                await asyncio.wait({lent, cancelled}, return_when=asyncio.FIRST_COMPLETED)
                session.drafter = lent.result() if lent.done() else None
            yield
        finally:
            self._streams.discard(stream)
            session.drafter = None
            cancelled.cancel()
            if lent is not None and not lent.cancel():
                self._free.put_nowait(lent.result())

    async def close(self) -> None:
        """Cancel what is being generated, close the connection and the drafters."""
        for stream in self._streams:
            stream.cancel()
        await self._transport.close()
        for drafter in self._drafters:
            await drafter.close()
        if self._trace is not None:
            self._trace.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def _controller(self, num_draft_tokens: int | None) -> Controller:
        controller: Controller = self._adaptive
        if num_draft_tokens is not None:
            controller = FixedController(Plan.fixed(num_draft_tokens))
        return controller if self._trace is None else self._trace.of(controller)


class AsyncChat:
    """A conversation in the model's chat template; `messages` is all of it so far."""

    def __init__(self, client: AsyncEdgeClient, system: str | None = None) -> None:
        self.messages: list[dict[str, str]] = []
        if system is not None:
            self.messages.append({"role": "system", "content": system})
        self._client = client
        self._session: Session | None = None

    async def send(self, text: str, **options: Any) -> AsyncStream:
        """The answer to `text`, a stream; options are those of `AsyncEdgeClient.generate`.

        Question and answer join `messages` when the stream has ended.
        """
        if self._session is None:
            self._session = await self._client.session()
        question = {"role": "user", "content": text}

        def remember(summary: Summary) -> None:
            self.messages += [question, {"role": "assistant", "content": summary.text}]

        return self._client.generate(
            messages=[*self.messages, question], session=self._session, done=remember, **options
        )
