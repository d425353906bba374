"""A draft model on a thread of its own: what the drafters of all model libraries share."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from draftwire.adjust import Adjuster
from draftwire.errors import InternalError, InvalidRequest
from draftwire.types import SamplingParams, Tokens, VerifyMode, common_prefix
from edge_client.drafter import Proposal
from edge_client.drafters.propose import Proposer

OVERTAKEN = "a draft was overtaken by a later call"

Logits = npt.NDArray[np.float32]


class Context(Protocol):
    """A model's cache: which tokens it stands for, and the logits after them.

    Not for several threads: one makes, uses and closes it.
    """

    tokens: list[int]

    def truncate(self, keep: int) -> None:
        """Forget the tokens from position `keep` on."""
        ...

    def logits(self, abandoned: Callable[[], bool] = lambda: False) -> Logits:
        """Logits after the last token, [vocabulary]: a view, valid until the next call.

        Gives up between two batches of tokens when `abandoned` says so, with `InternalError`.
        Raises `CannotRollBack` if the cache refuses to be rewound and `InvalidRequest` for an
        empty context; the next call then finds the context as it was.
        """
        ...

    def close(self) -> None:
        """Free the cache. Views handed out are invalid from here on. May be called again."""
        ...


def cores_to_draft_on(*, beside_verifier: bool = False) -> int:
    """How many of the cores that this process may use are for drafting.

    Half of them `beside_verifier`, one that runs on this machine: threads that wait for each other
    while others have their cores make both sides many times slower.
    """
    if hasattr(os, "sched_getaffinity"):
        available = len(os.sched_getaffinity(0))
    else:
        available = os.cpu_count() or 1
    return max(1, available // 2) if beside_verifier else available


def default_threads(*, beside_verifier: bool = False) -> int:
    """Threads of a draft model where nobody says: `cores_to_draft_on`, at most four."""
    return min(cores_to_draft_on(beside_verifier=beside_verifier), 4)


class ThreadedDrafter:
    """Implements `edge_client.drafter.Drafter` with one context on one thread.

    Only that thread touches the context. What a call says of the context (`keep`, `tokens`) is
    queued when the call begins and is never lost: if the caller stops waiting, the proposal is
    dropped, but the context is changed, then or before the next draft. So after a cancelled
    `draft(keep, tokens)` the context is its first `keep` tokens and `tokens`. (A task cancelled
    before its first step has not called at all: whoever can't tell keeps no more than `keep`,
    which is right in both cases.)
    """

    def __init__(
        self,
        open_context: Callable[[], Context],
        *,
        vocabulary_size: int,
        max_context: int,
        retain: Callable[[], None],
        release: Callable[[], None],
    ) -> None:
        """Draft in the context that `open_context` makes, here and now.

        It holds `max_context` tokens of `vocabulary_size`. The model that it needs is kept by
        `retain` before it is made, and let go by `release` when it is closed.
        """
        self._vocabulary_size = vocabulary_size
        self._max_context = max_context
        self._sampling = SamplingParams()
        self._adjuster: Adjuster | None = None
        self._mode = VerifyMode.MATCH
        self._tokens: list[int] = []  # the context as the caller knows it
        self._edits = 0  # how often it was changed
        retain()
        try:
            context = open_context()
        except BaseException:
            release()
            raise
        self._worker = _Worker(context, vocabulary_size, release)
        # Frees the context of a drafter that was forgotten, and at exit lets a decode end first.
        self._closed = weakref.finalize(self, self._worker.stop)

    @property
    def max_context(self) -> int:
        """Longest context, tokens: positions from here on can't be drafted."""
        return self._max_context

    def perturb_logits(self, size: float, seed: int) -> None:
        """Add noise to the likeliest tokens' logits from now on (`drafters.perturbed`)."""
        self._worker.proposer.perturb_logits(size, seed)

    async def begin(
        self,
        sampling: SamplingParams,
        context: Tokens,
        adjuster: Adjuster | None = None,
        mode: VerifyMode = VerifyMode.MATCH,
    ) -> int:
        """Start a generation; returns how many leading tokens of `context` are in the cache's.

        Nothing is removed yet: the first draft's `keep` says how much is used again.
        """
        self._sampling, self._adjuster, self._mode = sampling, adjuster, mode
        return common_prefix(self._tokens, context)

    async def draft(self, keep: int, tokens: Tokens) -> Proposal | None:
        """Truncate the context to `keep` tokens, append `tokens`, propose the next.

        None where a grammar allows none.
        Raises `InvalidRequest`, leaving the context alone, if `keep` exceeds the context, a token
        is unknown, or the context would leave no position to draft; and `CannotRollBack`.
        """
        self._check(keep, tokens)
        self._tokens[keep:] = tokens
        self._edits += 1
        edits = self._edits
        answer: asyncio.Future[Proposal | None] = asyncio.get_running_loop().create_future()
        self._worker.jobs.put(
            _Job(keep, list(tokens), self._sampling, self._adjuster, self._mode, answer)
        )
        proposal = await answer
        if self._edits != edits:
            raise InternalError(OVERTAKEN)
        if proposal is not None:
            self._tokens.append(proposal.token)
        return proposal

    async def close(self) -> None:
        """Free the context and end its thread. May be called again."""
        if self._closed.detach():
            ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._worker.jobs.put(ended)
            await ended

    def _check(self, keep: int, tokens: Tokens) -> None:
        if not self._closed.alive:
            raise InternalError("the drafter is closed")
        if not 0 <= keep <= len(self._tokens):
            raise InvalidRequest(f"can't keep {keep} tokens of a context of {len(self._tokens)}")
        if not 1 <= keep + len(tokens) < self._max_context:
            raise InvalidRequest(
                f"can't draft position {keep + len(tokens)}: the context has positions 1 to "
                f"{self._max_context - 1} to draft"
            )
        if tokens and not 0 <= min(tokens) <= max(tokens) < self._vocabulary_size:
            raise InvalidRequest("a token is not in the draft model's vocabulary")


@dataclass(slots=True)
class _Job:
    """A change of the context, and whom to tell what to propose after it."""

    keep: int
    tokens: list[int]
    sampling: SamplingParams
    adjuster: Adjuster | None
    mode: VerifyMode
    answer: asyncio.Future[Proposal | None]


class _Worker:
    """The thread that owns a context. It holds no drafter, so that a forgotten one is freed.

    A queue and a future of the event loop take half the time of an executor's hand-over, which
    each drafted token would pay. A future in place of a job asks the thread to end, None too.
    """

    def __init__(self, context: Context, vocabulary_size: int, release: Callable[[], None]) -> None:
        self.jobs: SimpleQueue[_Job | asyncio.Future[None] | None] = SimpleQueue()
        self.proposer = Proposer(vocabulary_size)
        self._context = context
        self._release = release
        self._thread = threading.Thread(target=self._run, name="drafter", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it, unless called on it."""
        self.jobs.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while isinstance(job := self.jobs.get(), _Job):
            # The change is made in any case, the draft only if somebody waits for it.
            self._context.truncate(job.keep)
            self._context.tokens += job.tokens
            if job.answer.cancelled():
                continue
            try:
                proposal = self._propose(job)
            except Exception as error:  # the caller's to handle
                _tell(job.answer, job.answer.set_exception, error)
            else:
                _tell(job.answer, job.answer.set_result, proposal)
        self._context.close()
        self._release()
        if job is not None:
            _tell(job, job.set_result, None)

    def _propose(self, job: _Job) -> Proposal | None:
        context = self._context
        change = None
        if job.adjuster is not None:
            job.adjuster.follow(context.tokens)
            if job.adjuster.complete:
                return None
            change = job.adjuster.adjustment()
        if change is not None and (forced := change.forced) is not None:
            proposal = Proposal(forced, 1.0)  # the model reads it when it is asked again
        else:
            logits = context.logits(lambda: job.answer.cancelled() or not self.jobs.empty())
            position = len(context.tokens)
            proposal = self.proposer.propose(logits, position, job.sampling, change, job.mode)
        context.tokens.append(proposal.token)
        return proposal


def _tell(future: asyncio.Future[Any], setter: Callable[[Any], object], value: object) -> None:
    """Set a future from another thread, if its event loop lives and somebody still waits."""

    def on_loop() -> None:
        if not future.done():
            setter(value)

    with suppress(RuntimeError):  # the loop is closed, and gone with it is whoever waited
        future.get_loop().call_soon_threadsafe(on_loop)
