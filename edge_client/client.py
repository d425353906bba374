"""The client SDK: text in, text out, drafted here and decided in the cloud.

`AsyncEdgeClient` is for asyncio; `edge_client.sync.EdgeClient` is the same for everyone else.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

from draftwire.credentials import Credentials
from draftwire.errors import InvalidRequest, LinkLost
from draftwire.grammar import GrammarCompiler, Matcher, serves_grammars
from draftwire.noise import NOISE_VERSION, derive_seed
from draftwire.types import (
    ModelCard,
    ServingLimits,
    TargetIdentity,
    check_tokens,
)
from edge_client.chat import AsyncChat, Messages
from edge_client.choice import Objective, Watts, as_objective
from edge_client.controller import AdaptiveController
from edge_client.drafter import Drafter, Tokenizer
from edge_client.failover import runs_here, transport_to
from edge_client.option_types import as_kind
from edge_client.options import Options, Settings, settings
from edge_client.plan import Controller, FixedController, Plan
from edge_client.reading import Reading, Turn
from edge_client.results import Summary
from edge_client.retry import RetryPolicy
from edge_client.session import Session
from edge_client.stream import AsyncStream
from edge_client.text import checked_messages, checked_text, pieces_of
from edge_client.trace import TracedController, TraceFile
from edge_client.translation import AsyncTranslator
from edge_client.transport import Transport


class AsyncEdgeClient:
    """Generates text with a draft model on this device and a verifier at the other end.

    `verifier` is `HOST:PORT`, several of them separated by commas and used in that order as one
    after the other fails, or a transport; `credentials` are for addresses. Without any, no API key
    is sent, and verifiers elsewhere are reached by TLS and known by the usual authorities.
    `drafters` may be none (the cloud decodes alone), one, or several for as many generations at
    once; a generation waits for a free one. Belongs to the event loop it is first used on, and to
    the process. Close it, or use it as a context manager.

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
        self._streams: set[Reading] = set()
        self._card: ModelCard | None = None
        self._grammars: GrammarCompiler | None = None
        # What one generation measured serves the next.
        self._adaptive = AdaptiveController(as_objective(objective), watts=watts)
        self._trace = None if trace is None else TraceFile(trace)
        self._defaults: Options = {}
        self._closed = False
        self._process = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None

    @classmethod
    def from_config(cls, path: str | Path) -> Self:
        """A client as a TOML file describes it (`edge_client.config`).

        Raises `InvalidRequest` for a file that can't be read and a key that is none, and what
        `from_model` raises.
        """
        from edge_client.config import read_config

        config = read_config(path)
        client = cls.from_model(**config.client)
        client._defaults = config.generation
        return client

    @classmethod
    def from_model(
        cls,
        verifier: str | Transport,
        model: str | Path,
        *,
        threads: int | None = None,
        context: int = 4096,
        providers: Sequence[str] = (),
        drafters: int = 1,
        **options: Any,
    ) -> Self:
        """Draft with a GGUF file in llama.cpp, or an `.onnx` file or a directory in ONNX Runtime.

        It runs on `threads` threads (default: one for each core, up to four, and half as many where
        the verifier is on this machine, too); `providers` are ONNX Runtime's execution providers,
        the preferred one first. So many `drafters` share the model's weights, each with a context
        and threads of its own. Further options are those of the class.

        Raises `ModelLoadFailed`, `CannotRollBack`, or `MissingDependency` without the extra that
        it takes, `edge` or `edge-onnx`.
        """
        from edge_client.draft_model import drafter_of, load_model
        from edge_client.drafters.threaded import default_threads

        if threads is None:
            beside = isinstance(verifier, str) and runs_here(verifier)
            threads = default_threads(beside_verifier=beside)
        loaded = load_model(model, threads=threads, providers=providers)
        try:
            made = [drafter_of(loaded, threads=threads, context=context) for _ in range(drafters)]
        finally:
            loaded.close()  # the drafters hold it from here on, for themselves and the tokenizer
        return cls(verifier, loaded.tokenizer, made, **options)

    @property
    def objective(self) -> Objective:
        """What tokens should take little of. Set it at any time, also while a text is generated.

        An app that learns of a low battery or of heat can ask for "energy", and later for "latency"
        again. Raises `InvalidRequest` for one that is none.
        """
        return self._adaptive.objective

    @objective.setter
    def objective(self, objective: Objective | str) -> None:
        self._adaptive.objective = as_objective(objective)

    async def card(self, *, again: bool = False) -> ModelCard:
        """What the verifier serves; asked once, or `again`.

        Raises `LinkLost` if it can't be reached.
        """
        self._settle()
        if self._card is None or again:
            self._card = await self._transport.describe()
        return self._card

    def generate(
        self,
        prompt: str | Sequence[int] | None = None,
        *,
        messages: Messages | None = None,
        session: Session | None = None,
        done: Callable[[Summary], None] | None = None,
        rounds: Callable[[str], object] | None = None,
        **options: Unpack[Options],
    ) -> AsyncStream:
        """Generate after `prompt` (text or token ids) or after `messages` in the chat template.

        The options are those of `edge_client.options`. With a `session` the generation continues
        its conversation. `done` is called with the summary at the end, `rounds` with a line for
        each round, as a trace file has it (`edge_client.trace`). Raises `InvalidRequest` for
        values out of range; the stream raises what happens on the way.
        """
        asked = settings(**self._defaults | options)

        async def known() -> Session:
            return session or await self._begin(asked)

        return self._stream(known, self._prompt(prompt, messages), asked, done, rounds=rounds)

    def samples(
        self,
        n: int,
        prompt: str | Sequence[int] | None = None,
        *,
        messages: Messages | None = None,
        **options: Unpack[Options],
    ) -> list[AsyncStream]:
        """`n` different outputs for one prompt, a stream each; arguments as for `generate`.

        Seeds are derived from the request's, which is the first stream's own, so that it reads as
        without `n`. The verifier reads the prompt once: whichever stream is read first goes ahead
        until it has, and the others find its KV there. With fewer drafters than streams, read one
        to its end before the next, or all at once: who waits for a drafter waits for its reader.
        """
        n = as_kind(n, int, "n")
        if n < 1:
            raise InvalidRequest(f"n is {n}, not ≥ 1")
        asked, turn = settings(**self._defaults | options), Turn()
        tokens = self._prompt(prompt, messages)
        return [
            self._stream(lambda: self._begin(asked), tokens, _sample(asked, index), turn=turn)
            for index in range(n)
        ]

    def _require_open(self) -> None:
        if self._closed:
            raise InvalidRequest("the client is closed", remedy="make another one")
        if os.getpid() != self._process:
            raise InvalidRequest(
                "the client was made before the process forked", remedy="make one in each process"
            )

    def _settle(self) -> None:
        """Stay on the event loop that runs now. Raises `InvalidRequest` if it was another."""
        loop = asyncio.get_running_loop()
        if self._loop not in (None, loop):
            raise InvalidRequest(
                "the client belongs to another event loop", remedy="make one on each"
            )
        self._loop = loop

    def _prompt(self, prompt: str | Sequence[int] | None, messages: Messages | None) -> list[int]:
        self._require_open()
        if (prompt is None) == (messages is None):
            raise InvalidRequest("give either a prompt or messages")
        if messages is not None:
            tokens = self.tokenizer.encode_chat(checked_messages(messages))
        elif isinstance(prompt, str):
            tokens = self.tokenizer.encode(checked_text(prompt, "the prompt"))
        else:
            tokens = list(as_kind(() if prompt is None else prompt, Sequence[int], "the prompt"))
        if not tokens:
            raise InvalidRequest("the prompt is empty", remedy="give it a token at least")
        return tokens

    def _stream(
        self,
        session: Callable[[], Coroutine[Any, Any, Session]],
        prompt: Sequence[int],
        settings: Settings,
        done: Callable[[Summary], None] | None = None,
        turn: Turn | None = None,
        rounds: Callable[[str], object] | None = None,
    ) -> AsyncStream:
        if settings.request.offline_tokens and not self._drafters:
            raise InvalidRequest(
                "there is no draft model to go on with while the cloud can't be reached",
                remedy="give the client a drafter, or leave out offline_tokens",
            )
        controller = self._controller(settings.num_draft_tokens)
        if rounds is not None:
            controller = TracedController(controller, rounds)
        return AsyncStream(Reading(self, session, prompt, controller, settings, done, turn))

    async def session(self) -> Session:
        """A new conversation, for several generations that share their beginning."""
        self._require_open()
        return self._session(await self.card())

    async def _begin(self, settings: Settings) -> Session:
        """As `session`, but where a draft may go on alone it may also begin so."""
        return self._session(await self._card_or_none(settings) or self._presumed())

    async def _card_or_none(self, settings: Settings) -> ModelCard | None:
        """The card; None where a draft may go on alone and the verifier does not answer."""
        patient_s = (self._retry or RetryPolicy()).silent_after_s
        try:
            async with asyncio.timeout(patient_s if settings.request.offline_tokens else None):
                return await self.card()
        except (LinkLost, TimeoutError):
            if not settings.request.offline_tokens:
                raise
            return None

    def _presumed(self) -> ModelCard:
        """What is taken for the verifier's card until it says itself what it serves."""
        unknown = TargetIdentity(
            model="",
            digest=b"",
            dtype="",
            vocabulary_fingerprint=self.tokenizer.fingerprint,
            noise_version=NOISE_VERSION,
        )
        contexts = [drafter.max_context for drafter in self._drafters]
        limits = ServingLimits(max_context=max(contexts, default=2))
        return ModelCard(target=unknown, limits=limits, vocabulary_size=0)

    def _session(self, card: ModelCard) -> Session:
        return Session(
            self._transport,
            card,
            fingerprint=self.tokenizer.fingerprint,
            eos_token_ids=self.tokenizer.eos_token_ids,
            retry=self._retry,
        )

    def chat(self, system: str | None = None, *, messages: Messages = ()) -> AsyncChat:
        """A conversation that goes on from `messages`: each turn sends only what is new."""
        return AsyncChat(self, system, messages)

    def translate(self, to: str, **options: Any) -> AsyncTranslator:
        """A translator of captions into a language; options are those of `AsyncTranslator`."""
        return AsyncTranslator(self, to, **options)

    @contextlib.asynccontextmanager
    async def _drafting(self, stream: Reading, session: Session) -> AsyncGenerator[None]:
        """Lend the session a drafter, waiting for a free one unless `stream` is cancelled."""
        lent = asyncio.create_task(self._free.get()) if self._drafters else None
        cancelled = asyncio.create_task(stream._cancelled.wait())
        try:
            if lent is not None:
                await asyncio.wait({lent, cancelled}, return_when=asyncio.FIRST_COMPLETED)
                session.drafter = lent.result() if lent.done() else None
            yield
        finally:
            session.drafter = None
            cancelled.cancel()
            if lent is not None and not lent.cancel():
                self._free.put_nowait(lent.result())

    async def close(self) -> None:
        """Cancel what is being generated, close the connection and the drafters."""
        self._closed = True
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

    async def _matcher(self, settings: Settings) -> Matcher | None:
        """What keeps drafts within the grammar, if there is one and it is to be kept to here.

        Drafts made before the verifier was ever reached are not: how large its vocabulary is, its
        card says. Raises `InvalidRequest` if it does not compile.
        """
        if settings.request.grammar is None or not settings.draft_with_grammar:
            return None
        card = await self._card_or_none(settings)
        if card is None:
            return None
        if self._grammars is None:
            pieces = pieces_of(self.tokenizer, card.vocabulary_size)
            if not serves_grammars(pieces):
                return None
            self._grammars = GrammarCompiler(pieces, self.tokenizer.encode)
        ends = settings.request.stop.ends(card.target.eos_token_ids)
        return self._grammars.compile(settings.request.grammar, ends)

    def _expected(self, prediction: str | Sequence[int]) -> list[int]:
        """Token ids of an output that is expected: text or ids, without a beginning token.

        Raises `InvalidRequest` for ids that are no tokens of the target.
        """
        if not isinstance(prediction, str):
            check_tokens(prediction, "the prediction")
            if self._card and max(prediction, default=0) >= self._card.vocabulary_size:
                raise InvalidRequest(
                    f"the prediction holds token {max(prediction)}, the vocabulary ends at "
                    f"{self._card.vocabulary_size - 1}",
                    remedy="use the target's tokenizer, or give the prediction as text",
                )
            return list(prediction)
        tokens = self.tokenizer.encode(checked_text(prediction, "the prediction"))
        return tokens[1:] if tokens and not self.tokenizer.piece(tokens[0]) else tokens

    def _controller(self, num_draft_tokens: int | None) -> Controller:
        controller: Controller = self._adaptive
        if num_draft_tokens is not None:
            controller = FixedController(Plan.fixed(num_draft_tokens))
        return controller if self._trace is None else self._trace.of(controller)


def _sample(asked: Settings, index: int) -> Settings:
    """The same with a seed of its own, derived from that which was asked for."""
    sampling = asked.request.sampling
    sampling = replace(sampling, seed=derive_seed(sampling.seed, index))
    return replace(asked, request=replace(asked.request, sampling=sampling))
