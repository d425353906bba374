"""A drafter without weights: the table model, as exact or as wrong as a test wants it."""

from __future__ import annotations

import asyncio

from draftwire.acceptance import match_token, quantize
from draftwire.adjust import Adjuster, Adjustment
from draftwire.errors import InvalidRequest
from draftwire.sampling import distribution
from draftwire.testing.table import TableModel
from draftwire.types import SamplingParams, Tokens, VerifyMode, common_prefix
from edge_client.drafter import Proposal
from edge_client.drafters.propose import drawn


class TableDrafter:
    """`Drafter` over a `TableModel`.

    Give it the target's model to be always right, `TableModel.perturbed` of it to be right in
    part, and `always_wrong` with the target's own model never to be: it then proposes another
    token than the model's, with the confidence of the right one. Each draft takes `draft_time_s`
    seconds of the event loop's clock; with 0 it lets other tasks run once.
    """

    def __init__(
        self,
        model: TableModel,
        *,
        draft_time_s: float = 0.0,
        always_wrong: bool = False,
        max_context: int = 1 << 20,
    ) -> None:
        self.model = model
        self.draft_time_s = draft_time_s
        self.always_wrong = always_wrong
        self.drafted = self.forced = 0
        self._max_context = max_context
        self._sampling = SamplingParams()
        self._adjuster: Adjuster | None = None
        self._mode = VerifyMode.MATCH
        # States after each token: rolling back is cutting the list.
        self._states = [model.initial]
        self._context: list[int] = []

    @property
    def max_context(self) -> int:
        """Longest context, tokens."""
        return self._max_context

    @property
    def context(self) -> Tokens:
        """Tokens the drafter believes in, its last proposal included."""
        return tuple(self._context)

    async def begin(
        self,
        sampling: SamplingParams,
        context: Tokens,
        adjuster: Adjuster | None = None,
        mode: VerifyMode = VerifyMode.MATCH,
    ) -> int:
        """Start a generation; returns how many leading tokens of `context` the own one shares."""
        self._sampling = sampling
        self._adjuster = adjuster
        self._mode = mode
        return common_prefix(self._context, context)

    async def draft(self, keep: int, tokens: Tokens) -> Proposal | None:
        """Truncate to `keep` tokens, append `tokens`, propose the next and append it too.

        None where a grammar allows none. What it leaves no choice about takes no time.
        Raises `InvalidRequest`, leaving the context alone, if `keep` exceeds the context or no
        position would be left to draft. Cancelled, it has truncated and appended `tokens` only.
        """
        self._rewrite(keep, tokens)
        change = None
        if self._adjuster is not None:
            self._adjuster.follow(self._context)
            if self._adjuster.complete:
                return None
            change = self._adjuster.adjustment()
        if change is not None and (forced := change.forced) is not None:
            self._append((forced,))
            self.forced += 1
            return Proposal(forced, 1.0)
        await asyncio.sleep(self.draft_time_s)
        proposal = self._propose(self._states[-1], change)
        self._append((proposal.token,))
        self.drafted += 1
        return proposal

    async def close(self) -> None:
        """Forget the context."""
        self._rewrite(0, ())

    def _rewrite(self, keep: int, tokens: Tokens) -> None:
        """Replace everything after the first `keep` tokens by `tokens`."""
        if not 0 <= keep <= len(self._context):
            raise InvalidRequest(f"keep is {keep}, the context has {len(self._context)} tokens")
        if keep + len(tokens) >= self._max_context:
            raise InvalidRequest(
                f"position {keep + len(tokens)} is past a draft context of {self._max_context}"
            )
        del self._context[keep:], self._states[keep + 1 :]
        self._append(tokens)

    def _append(self, tokens: Tokens) -> None:
        self._context.extend(tokens)
        state = self._states[-1]
        for token in tokens:
            state = self.model.extend(state, token)
            self._states.append(state)

    def _propose(self, state: int, change: Adjustment | None) -> Proposal:
        """The model's token after `state`, or another one if it is to be wrong."""
        if self._sampling.greedy and self._adjuster is None:
            proposal = Proposal(self.model.best(state), self.model.best_probability(state))
        else:
            # Over the whole vocabulary, so that the target's own model is right without exception.
            logits = self.model.logits(state)
            position = len(self._context)
            q = distribution(logits, self._sampling, change)
            if self._mode is VerifyMode.REJECTION and not self._sampling.greedy:
                proposal = drawn(quantize(q), self._sampling.seed, position)
            else:
                token = match_token(logits, position, self._sampling, change)
                proposal = Proposal(token, float(q[token]))
        if not self.always_wrong:
            return proposal
        # Never the same token, and never the end token, after which a session stops drafting.
        other = 1 + proposal.token % (self.model.vocabulary_size - 1)
        return Proposal(other, proposal.confidence)
