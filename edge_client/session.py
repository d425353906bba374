"""A conversation with one verifier: the history, and one generation at a time.

`Generation._decode` is the loop: draft, send, take verdicts. All else serves it. Rule numbers are
those of docs/protocol.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from draftwire.adjust import Adjuster
from draftwire.errors import (
    DeadlineExceeded,
    DraftwireError,
    InvalidRequest,
    LimitExceeded,
    SessionGone,
)
from draftwire.grammar import Matcher
from draftwire.types import (
    SESSION_ID_BYTES,
    Cancel,
    Draft,
    Finished,
    FinishReason,
    Hint,
    History,
    ModelCard,
    Open,
    Opened,
    TokenLogprobs,
    Tokens,
    Verdict,
    common_prefix,
    history_hash,
)
from edge_client.attempt import Attempt
from edge_client.branch import Branch, Commit
from edge_client.checks import check_finished, check_opened, check_verdict
from edge_client.drafter import Drafter
from edge_client.drafting import Drafted, DraftWorker, Late
from edge_client.extent import Extent
from edge_client.inbox import Event, Inbox
from edge_client.offline import Offline
from edge_client.plan import Controller, Plan, Round, View
from edge_client.request import Request
from edge_client.retry import Patience, RetryPolicy
from edge_client.transport import Link, Transport, WireBytes

logger = logging.getLogger(__name__)

_DEFAULTS = Request()


class Session:
    """Holds the history of a conversation; the verifier's session is a cache of it.

    `fingerprint` and `eos_token_ids` are the tokenizer's: which vocabulary the tokens are of,
    and after which of them nothing is drafted. One generation runs at a time.
    """

    def __init__(
        self,
        transport: Transport,
        card: ModelCard,
        *,
        fingerprint: bytes,
        drafter: Drafter | None = None,
        eos_token_ids: frozenset[int] = frozenset(),
        retry: RetryPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.id = secrets.token_bytes(SESSION_ID_BYTES)
        self.transport = transport
        self.limits = card.limits
        self.vocabulary_size = card.vocabulary_size  # 0: not known
        self.fingerprint = fingerprint
        self.drafter = drafter
        self.draft_ends = eos_token_ids
        self.target_ends = frozenset(card.target.eos_token_ids)
        self.retry = retry or RetryPolicy()
        self.clock = clock
        self.tokens: list[int] = []
        self.known = 0  # leading tokens that the verifier is thought to hold
        self.target = b""  # digest of the target that the session began on
        self.attempt = 0
        self.generation = 0
        self._last: Generation | None = None

    def generate(
        self,
        prompt: Tokens,
        controller: Controller,
        request: Request = _DEFAULTS,
        matcher: Matcher | None = None,
    ) -> Generation:
        """The generation after `prompt`, which is the whole conversation in tokens.

        What it shares with the conversation so far is not sent again. With a `matcher` of the
        request's grammar drafts stay within it, too.
        """
        self.require_idle()
        self.known = min(self.known, common_prefix(self.tokens, prompt))
        self.tokens = list(prompt)
        self.generation += 1
        self._last = Generation(self, controller, request, matcher)
        return self._last

    def require_idle(self) -> None:
        """Raise `InvalidRequest` while a generation is in flight."""
        if self._last is not None and self._last.running:
            raise InvalidRequest(
                "a generation of this session is in flight",
                remedy="finish or cancel it first, or use another session",
            )


class Generation:
    """One generation of a session. `run()` yields what is committed, as it is.

    Afterwards `finished` says how it ended and the session's `tokens` hold prompt and output.
    `logprobs` has one entry for each committed token, if asked for.
    `sent_frames` and `sent_tokens` count the drafts on the wire and `bytes` all payload there;
    `outcomes` are the sent drafts that the target judged: confidence, and whether it agreed;
    `rtts_s` the round trips measured, `opens` the streams it took; `offline` what was drafted
    while the cloud could not be reached. `lost` is what the last stream broke by, while another
    is being opened.
    """

    def __init__(
        self,
        session: Session,
        controller: Controller,
        request: Request,
        matcher: Matcher | None = None,
    ) -> None:
        self.finished: Finished | None = None
        self.running = False
        self.opens = self.sent_frames = self.sent_tokens = 0
        self.lost: DraftwireError | None = None
        self.logprobs: list[TokenLogprobs] = []
        self.rtts_s: list[float] = []
        self.outcomes: list[tuple[float, bool]] = []
        self.bytes = WireBytes()
        self._session = session
        self._controller = controller
        self._request = request
        self._branch = Branch(session.tokens, mode=request.mode)
        self.offline = Offline(request.offline_tokens, self._branch, session.retry.silent_after_s)
        self._start = len(session.tokens)
        self._extent = Extent(self._start, request.stop, session.target_ends, session.draft_ends)
        self._cancelled = asyncio.Event()
        adjuster = Adjuster.of(
            request.sampling,
            request.stop,
            start=self._start,
            eos_token_ids=session.target_ends,
            grammar=matcher,
        )
        self._inbox = Inbox()
        self._worker = DraftWorker(
            session.drafter, request, adjuster, self._inbox.post, session.clock
        )
        self._attempt = Attempt(limits=session.limits)
        self._hint: Hint | None = None
        self._word_within_s = session.retry.cancel_timeout_s
        self._patience = Patience(session.retry, session.clock)

    async def run(self) -> AsyncGenerator[list[Commit]]:
        """Generate. Leaving early cancels. An empty list: what is `tentative` has changed.

        Raises the verifier's errors, and `LinkLost` when it can't be reached for too long.
        """
        self.running = True
        if self._cancelled.is_set():
            self._finish_cancelled()
        try:
            while self.finished is None:
                try:
                    async with contextlib.AsyncExitStack() as stack:
                        opening = asyncio.create_task(self._open(stack))
                        async with contextlib.aclosing(self._meanwhile(opening)) as drafts:
                            async for nothing in drafts:
                                yield nothing
                        if opening.cancelled():
                            break
                        async with contextlib.aclosing(self._decode(await opening)) as commits:
                            async for commit in commits:
                                yield commit
                except DraftwireError as error:
                    recovering = asyncio.create_task(self._recover(error))
                    async with contextlib.aclosing(self._meanwhile(recovering)) as drafts:
                        async for nothing in drafts:
                            yield nothing
        finally:
            self._worker.stop()
            self.running = False

    @property
    def tentative(self) -> Sequence[int]:
        """Drafted tokens to show after what is committed."""
        tail = self._branch.tail
        return tail if self._request.show_drafts else tail[: self.offline.unjudged]

    def cancel(self, *, within_s: float = math.inf) -> None:
        """End the generation, keeping what is committed; `finished` will say cancelled.

        The verifier's word is waited for `within_s`, and no longer than the retry policy says.
        """
        if not self._cancelled.is_set():
            self._word_within_s = min(within_s, self._word_within_s)
            self._cancelled.set()
            self._inbox.post(Cancel())

    # ------------------------------------------------------------------ the loop

    async def _decode(self, link: Link) -> AsyncGenerator[list[Commit]]:
        """One stream: draft, send, take verdicts, until the verifier has finished."""
        reading = self._inbox.reading(link)
        try:
            while self.finished is None:
                plan = self._plan()
                if frame := self._due(plan):
                    await link.send(frame)
                if self._may_draft(plan):
                    self._worker.ask(self._branch, self._controller.patience_s)
                match await self._next():
                    case None:  # silent: the draft goes on alone
                        yield []
                    case Drafted() as drafted:
                        if self._take_draft(drafted):
                            yield []
                    case Late():
                        pass  # the next plan does without that draft
                    case Verdict() as verdict:
                        yield self._take_verdict(verdict)
                    case Finished() as finished:
                        self._take_finished(finished)
                    case Opened() as opened:
                        self._take_opened(opened)
                    case Cancel():
                        await self._send_cancel(link)
                    case DraftwireError() as error:
                        raise error
        except (GeneratorExit, asyncio.CancelledError):
            await self._leave(link)
            raise
        finally:
            reading.cancel()

    def _plan(self) -> Plan:
        """The controller's plan; where the drafter has no more to say, the cloud goes on alone."""
        branch = self._branch
        beyond = branch.end >= self._worker.max_context
        if not branch.tail and (beyond or self._worker.dry(branch)):
            return Plan.cloud_alone()
        plan = self._controller.plan(
            View(
                confidences=branch.confidences,
                sent=branch.sent,
                remaining=self._reach - branch.end,
                behind=branch.behind,
                alone=self.offline.cut_off,
                late=self._worker.late,
            )
        )
        return self.offline.plan or plan

    def _due(self, plan: Plan) -> Draft | None:
        """The frame to send now, if any."""
        if self._cancelled.is_set() or self._over or self.offline.cut_off:
            return None
        frame = self._branch.due(plan, self._session.limits, more=self._can_draft(plan))
        if frame is not None:
            self._attempt.sent_at.append(self._session.clock())
            self.sent_frames += bool(frame.tokens)
            self.sent_tokens += len(frame.tokens)
        return frame

    def _can_draft(self, plan: Plan) -> bool:
        """Whether the plan and the text have room for another draft."""
        branch = self._branch
        return (
            len(branch.tail) < plan.window
            and branch.end < min(self._reach, self._worker.max_context)
            and not self._worker.dry(branch)
            and not (branch.tail and self._extent.ends_draft(branch.tail[-1]))
        )

    def _may_draft(self, plan: Plan) -> bool:
        """Whether to draft another token now; waiting means not to while drafts are out."""
        return (
            not self._worker.busy
            and not self._cancelled.is_set()
            and not self._over
            and (plan.pipelined or not self._branch.sent)
            and self._can_draft(plan)
        )

    @property
    def _over(self) -> bool:
        """Whether the text is complete, and only the verifier's word of it is still to come."""
        return self._extent.complete(self._branch.committed, self._session.limits)

    @property
    def _reach(self) -> int:
        """The longest the text can get, tokens."""
        return self._extent.reach(self._session.limits)

    # ------------------------------------------------------------------ events

    async def _next(self) -> Event | None:
        """The next event; None where the verifier owes one and has been silent for too long."""
        patient_s = None if self._branch.idle else self.offline.patient_s
        try:
            return await self._inbox.next(patient_s)
        except TimeoutError:
            self.offline.lost()
            return None

    def _take_draft(self, drafted: Drafted) -> bool:
        """Take an answer of the drafter's in. Whether what is tentative has changed."""
        before = self._branch.end
        self._worker.take(drafted, self._branch)
        grown = self._branch.end - before
        self.offline.grew(grown)
        if drafted.proposal is not None and not drafted.first:
            self._controller.drafted(drafted.seconds, drafted.fed)
        return grown > 0 and (self._request.show_drafts or self.offline.cut_off)

    def _take_drafts(self) -> bool:
        """As `_take_draft`, of all that came while there is no stream."""
        grown = [self._take_draft(drafted) for drafted in self._inbox.left_behind()]
        return any(grown)

    def _take_verdict(self, verdict: Verdict) -> list[Commit]:
        branch, timing = self._branch, verdict.timing
        check_verdict(
            verdict,
            room=self._reach - len(branch.committed),
            vocabulary_size=self._session.vocabulary_size,
            logprobs=bool(self._request.logprobs),
        )
        sent = branch.sent
        commits = branch.apply(verdict)
        self.logprobs += verdict.logprobs
        outcomes, branch.outcomes = branch.outcomes, []
        self.outcomes += outcomes if sent else []
        self._session.known = len(branch.committed)
        self._patience.news()
        self.offline.found()
        self._hint = verdict.hint or self._hint
        at = self._session.clock()
        rtt_s = self._attempt.rtt_s(timing, at)
        self.rtts_s += [] if rtt_s is None else [rtt_s]
        self._controller.judged(
            Round(
                at=at,
                committed=len(commits),
                sent=sent,
                first=self._attempt.unread,
                outcomes=outcomes,
                rtt_s=rtt_s,
                queue_s=timing.queue_us / 1e6,
                pass_s=timing.pass_us / 1e6,
                pass_rows=timing.pass_rows,
                remaining=self._reach - len(branch.committed),
                hint=self._hint,
            )
        )
        self._attempt.unread &= not timing.pass_rows
        return commits

    def _take_opened(self, opened: Opened) -> None:
        session = self._session
        check_opened(opened, session.target)
        session.target, session.limits = opened.target.digest, opened.limits
        session.target_ends = frozenset(opened.target.eos_token_ids)
        session.known = max(session.known, self._attempt.committed)
        self._attempt.known = 0
        self.lost = None
        self.offline.found()

    def _take_finished(self, finished: Finished) -> None:
        committed = len(self._branch.committed)
        check_finished(finished, start=self._start, committed=committed)
        self._branch.truncate(finished.length)
        del self.logprobs[finished.length - self._start :]
        self._session.known = finished.length
        self.finished = finished

    # ------------------------------------------------------------------ opening and ending

    async def _meanwhile(self, task: asyncio.Task[Any]) -> AsyncGenerator[list[Commit]]:
        """Between two streams: wait for a task, drafting on alone where that is allowed.

        Raises what the task does. Left early, or cancelled, it ends the generation.
        """
        cancelled = asyncio.create_task(self._cancelled.wait())
        try:
            if self._take_drafts() or self.offline.cut_off:
                yield []
            while not task.done():
                if cancelled.done():
                    self._finish_cancelled()
                    return
                if self.offline.cut_off and self._may_draft(self._plan()):
                    self._worker.ask(self._branch, self._controller.patience_s)
                news = {task, cancelled, *self._worker.asked}
                done, _ = await asyncio.wait(
                    news, timeout=self.offline.patient_s, return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    self.offline.lost()
                    yield []
                while self._take_drafts():
                    yield []
            await task
        except (GeneratorExit, asyncio.CancelledError):
            self._finish_cancelled()
            raise
        finally:
            cancelled.cancel()
            if not task.done():  # else nothing is awaited here, where a cancellation would be lost
                task.cancel()
                await asyncio.wait([task])

    async def _open(self, stack: contextlib.AsyncExitStack) -> Link:
        """Open a stream; the first token does not wait for the device (rule 7)."""
        session, branch = self._session, self._branch
        link = await stack.enter_async_context(session.transport.connect(self.bytes))
        session.attempt += 1
        self.opens += 1
        branch.new_stream()
        known = session.known
        self._attempt = Attempt(committed=len(branch.committed), known=known, limits=session.limits)
        await link.send(
            Open(
                session_id=session.id,
                attempt=session.attempt,
                generation=session.generation,
                start=self._start,
                history=History(
                    prefix_length=known,
                    prefix_hash=history_hash(branch.committed[:known]),
                    tokens=tuple(branch.committed[known:]),
                ),
                vocabulary_fingerprint=session.fingerprint,
                sampling=self._request.sampling,
                stop=self._request.stop,
                expected_target=session.target,
                mode=self._request.mode,
                logprobs=self._request.logprobs,
                grammar=self._request.grammar,
            )
        )
        plan = self._plan()
        if plan.window and plan.asks_first and not branch.tail:
            self._attempt.sent_at.append(session.clock())
            await link.send(branch.ask(plan, session.limits))
        return link

    async def _recover(self, error: DraftwireError) -> None:
        """After a stream broke: return to open another, or raise what can't be mended."""
        session, attempt = self._session, self._attempt
        gone = isinstance(error, SessionGone)
        if gone:
            session.known = 0
        if self._cancelled.is_set():
            self._finish_cancelled()
            return
        if gone and attempt.known:
            return  # at once, with all of the text
        # Frames go ahead of `opened`: by limits that it may then have told to be others.
        mended = isinstance(error, LimitExceeded) and session.limits != attempt.limits
        pause_s = self._patience.pause_s(error, opened=bool(session.target), mended=mended)
        if type(self.lost) is type(error):
            logger.warning("still lost, opening again in %.1f s", pause_s)
        else:
            logger.warning("stream lost, opening again in %.1f s: %s", pause_s, error)
        self.lost = error
        self.offline.lost()
        self._worker.ask_again()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._cancelled.wait(), pause_s)
            self._finish_cancelled()

    async def _send_cancel(self, link: Link) -> None:
        """Ask the verifier to end; its word, or a deadline, ends the loop (rule 23)."""
        late = DeadlineExceeded("the verifier did not confirm the cancel")
        asyncio.get_running_loop().call_later(self._word_within_s, self._inbox.post, late)
        await link.send(Cancel())

    async def _leave(self, link: Link) -> None:
        """Whoever wanted the text has gone: tell the verifier, and wait a little for its word."""
        self._cancelled.set()
        with contextlib.suppress(DraftwireError, TimeoutError):
            async with asyncio.timeout(self._session.retry.cancel_timeout_s):
                await link.send(Cancel())
                while self.finished is None:
                    match await self._inbox.next():
                        case Verdict() as verdict:
                            self._take_verdict(verdict)
                        case Finished() as finished:
                            self._take_finished(finished)
                        case DraftwireError() as error:
                            raise error
        self._finish_cancelled()

    def _finish_cancelled(self) -> None:
        if self.finished is None:
            length = len(self._branch.committed)
            self.finished = Finished(reason=FinishReason.CANCELLED, length=length)
