"""Live translation: captions that grow go in, a translation that follows comes out.

Every update is translated anew, with the translation before as the prediction of this one: what
holds of it is verified in one pass, and after the first difference the device's model drafts. The
text is what translating the caption afresh gives. `AsyncTranslator` is for asyncio;
`edge_client.translation_sync.Translator` is the same for everyone else.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from draftwire.errors import InvalidRequest
from edge_client.options import settings
from edge_client.session import Session
from edge_client.text import checked_text
from edge_client.translation_display import Display
from edge_client.translation_prompt import DEFAULT_TEMPLATE, TranslationPrompt
from edge_client.translation_results import TranslationReport, TranslationUpdate
from edge_client.translation_run import TranslationRun
from edge_client.translation_stability import Stability, settled_tokens

if TYPE_CHECKING:
    from edge_client.client import AsyncEdgeClient

_OWN = (
    *("messages", "prompt", "session", "prediction", "logprobs", "top_logprobs"),
    *("show_drafts", "offline_tokens"),
)
"""Arguments of a generation that are the translator's own affair."""


@dataclass(frozen=True, slots=True)
class _Caption:
    """What is to be translated, and when the oldest caption came that it stands for."""

    text: str
    since: float
    final: bool = False


class AsyncTranslator:
    """Translates one speaker's captions; made by `AsyncEdgeClient.translate`.

    `update` gives the caption as it is now, `commit` says that it is final. Whatever changes on
    display is told to `shown`, from the event loop. A newer caption supersedes one of its line
    that waits or is being translated; a final one is always translated. Belongs to the event loop
    it is used on. A context manager: leaving it waits for what is under way.

    `to`, `template`, `glossary` and `context` (how many lines before it the model is told) are
    those of `TranslationPrompt`. The last `hold_back` words are not shown before they settle.
    `stability` is the bonus of `Stability`, in nats: above 0 it is lossy. Other options are those
    of a generation; by default it is greedy and ends with the line, at most 256 tokens. Raises
    `InvalidRequest` for values out of range.
    """

    def __init__(
        self,
        client: AsyncEdgeClient,
        to: str,
        *,
        shown: Callable[[TranslationUpdate], None] | None = None,
        template: str = DEFAULT_TEMPLATE,
        glossary: Mapping[str, str] | None = None,
        context: int = 0,
        hold_back: int = 0,
        stability: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        **options: Any,
    ) -> None:
        if refused := [name for name in _OWN if name in options]:
            raise InvalidRequest(f"a translator chooses {', '.join(refused)} itself")
        self._options: dict[str, Any] = {"stop": "\n", "seed": 0, **options}
        settings(**self._options)  # refused before any work
        self._client = client
        self._shown = shown
        self._prompt = TranslationPrompt(to, template=template, glossary=glossary, context=context)
        self._display = Display(hold_back)
        self._hold_back = hold_back
        self._stability = Stability(stability)
        self._clock = clock
        self._session: Session | None = None
        self._worker: asyncio.Task[None] | None = None
        self._line = ""  # the caption as it is now
        self._waiting: deque[_Caption] = deque()
        self._running: tuple[_Caption, TranslationRun] | None = None
        self._last: tuple[str, TranslationRun] | None = None  # of this line, complete
        self._before: list[int] = []  # what the next translation of this line is expected to be
        self._context: deque[tuple[str, str]] = deque(maxlen=context)
        self._passes = 0  # since the last settled one
        self._counts: Counter[str] = Counter()
        self._lags_ms: list[float] = []

    def update(self, caption: str) -> None:
        """The caption of the line being spoken, all of it, in place of the one before.

        An empty one, or the same again, changes nothing. Raises what made the translation fail, and
        `InvalidRequest` for half of a surrogate pair.
        """
        self._check()
        text = " ".join(checked_text(caption, "the caption").split())
        if text and text != self._line:
            self._line = text
            self._counts["updates"] += 1
            self._enqueue(_Caption(text, self._clock()))

    def commit(self) -> None:
        """The line is final: the next update begins another. Without a caption nothing happens.

        Raises what made the translation fail.
        """
        self._check()
        if self._line:
            self._enqueue(_Caption(self._line, self._clock(), final=True))
            self._line = ""

    async def settled(self) -> None:
        """Wait until all captions given are translated. Raises what made that fail."""
        if self._worker is not None:
            await asyncio.shield(self._worker)

    @property
    def report(self) -> TranslationReport:
        """How it went so far."""
        counts = {name: self._counts[name] for name in ("updates", "superseded", "lines", "words")}
        return TranslationReport(
            **counts,
            passes=self._counts["passes"],
            tokens=self._counts["tokens"],
            taken_back=self._display.taken_back,
            lags_ms=tuple(self._lags_ms),
            lossy=self._stability.bonus > 0,
        )

    async def close(self) -> None:
        """Give up what is under way."""
        self._waiting.clear()
        if self._worker is not None:
            self._worker.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):  # told by `settled`
                await self._worker
            self._worker = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                await self.settled()
        finally:
            await self.close()

    def _check(self) -> None:
        """Raise what the worker failed with."""
        if self._worker is not None and self._worker.done():
            self._worker.result()

    def _enqueue(self, caption: _Caption) -> None:
        """Have it translated next, in place of what it supersedes."""
        if self._waiting and not self._waiting[-1].final:
            old = self._waiting.pop()
            self._counts["superseded"] += old.text != caption.text
            caption = replace(caption, since=old.since)
        self._waiting.append(caption)
        if self._running is not None and self._superseded(self._running[0]):
            self._running[1].cancel()
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())

    def _superseded(self, caption: _Caption) -> bool:
        """Whether another caption of the same line waits."""
        newer = bool(self._waiting) and self._waiting[0].text != caption.text
        return newer and not caption.final

    async def _work(self) -> None:
        """Translate what waits, one after the other."""
        if self._session is None:
            self._session = await self._client.session()
        while self._waiting:
            caption = self._waiting.popleft()
            run = self._run(caption, self._session)
            if not run.ended:
                await self._translate(caption, run)
                self._passes += run.passes
                self._before = run.expected()
            if run.ended:
                self._settle(caption, run)
            else:  # the one that superseded it stands for it, too
                self._counts["superseded"] += 1
                self._waiting[0] = replace(self._waiting[0], since=caption.since)

    def _run(self, caption: _Caption, session: Session) -> TranslationRun:
        """The translation of a caption: to be made, unless it is there."""
        if self._last is not None and self._last[0] == caption.text:
            return self._last[1]
        message = self._prompt.message(caption.text, self._context)
        tokenizer, held = self._client.tokenizer, list[int]()
        if self._stability.bonus:
            held = settled_tokens(self._before, tokenizer, self._hold_back)
        return TranslationRun(
            self._client,
            session,
            tokenizer.encode_chat([{"role": "user", "content": message}]),
            before=self._before,
            held=held,
            stability=self._stability,
            options=self._options,
        )

    async def _translate(self, caption: _Caption, run: TranslationRun) -> None:
        """Make a translation and show it as it comes."""
        self._running = caption, run
        try:
            async with contextlib.aclosing(run.progress()) as progress:
                async for _ in progress:
                    if self._display.show(run.text, complete=False):
                        self._tell(caption, run, settled=False)
        finally:
            self._running = None

    def _settle(self, caption: _Caption, run: TranslationRun) -> None:
        """Show a complete translation; after a final one the next line begins."""
        self._display.show(run.text, complete=True, final=caption.final)
        counts = self._counts
        counts["passes"] += self._passes
        counts["tokens"] += len(run.tokens)
        self._lags_ms.append(self._lag_ms(caption))
        self._tell(caption, run, settled=True)
        self._passes = 0
        self._last = caption.text, run
        if caption.final:
            counts["lines"] += 1
            counts["words"] += len(self._display.words)
            self._context.append((caption.text, self._display.text))
            self._display.clear()
            self._last, self._before = None, []

    def _tell(self, caption: _Caption, run: TranslationRun, *, settled: bool) -> None:
        if self._shown is not None:
            self._shown(
                TranslationUpdate(
                    source=caption.text,
                    text=self._display.text,
                    translation=run.text.strip(),
                    token_ids=tuple(run.tokens),
                    settled=settled,
                    final=settled and caption.final,
                    passes=self._passes if settled else self._passes + run.passes,
                    lag_ms=self._lag_ms(caption),
                )
            )

    def _lag_ms(self, caption: _Caption) -> float:
        return (self._clock() - caption.since) * 1e3
