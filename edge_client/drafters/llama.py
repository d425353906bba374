"""Drafting with a GGUF model through llama.cpp."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from operator import eq

from draftwire.errors import InternalError, InvalidRequest
from draftwire.types import SamplingParams, Tokens
from edge_client.drafter import Proposal
from edge_client.drafters.llama_context import OVERTAKEN, LlamaContext
from edge_client.drafters.llama_model import LlamaModel
from edge_client.drafters.propose import Proposer

__all__ = ["LlamaDrafter", "LlamaModel", "default_threads"]


def default_threads() -> int:
    """How many of the processors this process may use a draft model is given: at most four."""
    if hasattr(os, "sched_getaffinity"):
        available = len(os.sched_getaffinity(0))
    else:
        available = os.cpu_count() or 1
    return min(available, 4)


class LlamaDrafter:
    """Implements `edge_client.drafter.Drafter` with one llama.cpp context on one thread.

    Only that thread touches the context. What a call says of the context (`keep`, `tokens`) is
    queued as an edit when the call begins and is never lost: if the caller stops waiting, the
    proposal is dropped, but the edit is applied, then or before the next draft. So after a
    cancelled `draft(keep, tokens)` the context is its first `keep` tokens and `tokens`. (A task
    cancelled before its first step has not called at all: whoever can't tell keeps no more than
    `keep`, which is right in both cases.)
    """

    def __init__(
        self,
        model: LlamaModel,
        *,
        threads: int | None = None,
        context: int = 4096,
        batch: int = 32,
    ) -> None:
        """Allocate a context of `context` tokens, at most what the model was trained for.

        `batch` is how many tokens of a prompt are decoded at a time, and so how long a cancelled
        draft may keep the next one waiting. Below 64, llama.cpp's attention on a CPU rounds as it
        does for a single token, and drafts don't depend on how the context came about; from 64
        on a prompt takes an eighth less time (measured). A GPU wants hundreds.
        `threads` defaults to `default_threads()`. Raises `InvalidRequest` for numbers below one
        and `ModelLoadFailed` if there is no memory.
        """
        threads = default_threads() if threads is None else threads
        if threads < 1 or context < 2 or batch < 1:
            raise InvalidRequest("a drafter needs a thread, a batch of 1 and a context of 2 tokens")
        self._vocabulary_size = model.vocabulary_size
        self._max_context = min(context, model.trained_context)
        self._sampling = SamplingParams()
        self._proposer = Proposer(model.vocabulary_size)
        self._edits: deque[tuple[int, list[int]]] = deque()
        self._submitted = 0  # edits queued
        self._applied = 0  # edits the thread has applied; written by the thread
        self._tokens: list[int] = []  # the context as the caller knows it
        self._closed = False
        self._model = model
        model.retain()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="llama-drafter")
        try:
            self._context = self._thread.submit(
                LlamaContext, model, threads=threads, size=self._max_context, batch=batch
            ).result()
        except BaseException:
            self._thread.shutdown()
            model.release()
            raise

    @property
    def max_context(self) -> int:
        """Longest context, tokens: positions from here on can't be drafted."""
        return self._max_context

    def perturb_logits(self, size: float, seed: int) -> None:
        """Add noise to the likeliest tokens' logits from now on (`drafters.perturbed`)."""
        self._proposer.perturb_logits(size, seed)

    async def begin(self, sampling: SamplingParams, context: Tokens) -> int:
        """Start a generation; returns how many leading tokens of `context` are in the cache's.

        Nothing is removed yet: the first draft's `keep` says how much is used again.
        """
        self._sampling = sampling
        return sum(1 for _ in takewhile(bool, map(eq, self._tokens, context)))

    async def draft(self, keep: int, tokens: Tokens) -> Proposal:
        """Truncate the context to `keep` tokens, append `tokens`, propose the next.

        Raises `InvalidRequest`, leaving the context alone, if `keep` exceeds the context, a token
        is unknown, or the context would leave no position to draft; and `CannotRollBack`.
        """
        self._check(keep, tokens)
        self._edits.append((keep, list(tokens)))
        self._tokens[keep:] = tokens
        self._submitted += 1
        edits = self._submitted
        proposal = await asyncio.get_running_loop().run_in_executor(
            self._thread, self._draft, edits, self._sampling
        )
        if self._submitted != edits:
            raise InternalError(OVERTAKEN)
        self._tokens.append(proposal.token)
        return proposal

    async def close(self) -> None:
        """Free the context and end its thread. May be called again."""
        if self._closed:
            return
        self._closed = True
        freed = self._thread.submit(self._free)
        self._thread.shutdown(wait=False)
        await asyncio.wrap_future(freed)

    def _check(self, keep: int, tokens: Tokens) -> None:
        if self._closed:
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

    # ------------------------------------------------------------ on the context's own thread

    def _draft(self, edits: int, sampling: SamplingParams) -> Proposal:
        """Propose a token for the context as it is after the first `edits` edits."""
        context = self._context
        while self._applied < edits:
            keep, tokens = self._edits.popleft()
            context.truncate(keep)
            context.tokens += tokens
            self._applied += 1
        logits = context.logits(lambda: self._submitted > edits or self._closed)
        proposal = self._proposer.propose(logits, len(context.tokens), sampling)
        context.tokens.append(proposal.token)
        return proposal

    def _free(self) -> None:
        self._context.close()
        self._model.release()
