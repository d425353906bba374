"""Drafters made worse on purpose, for tests and benchmarks. Everything they give is synthetic.

They exist because one pair of models has one acceptance rate; a benchmark of others must say
that it made them, which is what `label` is for.
"""

from __future__ import annotations

import random
from typing import Protocol

from draftwire.adjust import Adjuster
from draftwire.errors import InvalidRequest
from draftwire.types import SamplingParams, Tokens, VerifyMode
from edge_client.drafter import Drafter, Proposal


class HasLogits(Drafter, Protocol):
    """A drafter that computes logits and can spoil them (`drafters.propose.Proposer`)."""

    def perturb_logits(self, size: float, seed: int) -> None:
        """Add noise of standard deviation `size` to the likeliest tokens' logits; 0 for none."""
        ...


class _Wrapper:
    """What all wrappers pass on, and the base of those that propose another token.

    The inner drafter's context then differs from ours in its last token. That token was never
    decoded, so putting it right by the next call's edit costs no more than the call itself.
    """

    label: str

    def __init__(self, inner: Drafter) -> None:
        """Wrap `inner`, which is ours from now on."""
        self._inner = inner
        self._agreed = 0  # tokens that the inner context has in common with ours
        self._own: list[int] = []  # our proposal in place of the inner one

    @property
    def max_context(self) -> int:
        """Longest context of the wrapped drafter, tokens."""
        return self._inner.max_context

    async def begin(
        self,
        sampling: SamplingParams,
        context: Tokens,
        adjuster: Adjuster | None = None,
        mode: VerifyMode = VerifyMode.MATCH,
    ) -> int:
        """Start a generation; returns how many leading tokens of `context` both contexts share."""
        return min(await self._inner.begin(sampling, context, adjuster, mode), self._agreed)

    async def draft(self, keep: int, tokens: Tokens) -> Proposal | None:
        """Let the wrapped drafter draft, at its usual cost, and propose what becomes of it."""
        if not 0 <= keep <= self._agreed + len(self._own):
            raise InvalidRequest(f"can't keep {keep} tokens of the drafter's context")
        common = min(keep, self._agreed)
        edit = [*self._own[: keep - common], *tokens]
        before = self._agreed, self._own
        # From here on, also if the call is cancelled, the inner context is ours.
        self._agreed, self._own = common + len(edit), []
        try:
            proposal = await self._inner.draft(common, edit)
        except InvalidRequest:  # which changes no context
            self._agreed, self._own = before
            raise
        if proposal is None:
            return None
        proposal = self._replace(proposal, self._agreed)
        self._own = [proposal.token]
        return proposal

    async def close(self) -> None:
        """Close the wrapped drafter."""
        await self._inner.close()

    def _replace(self, proposal: Proposal, position: int) -> Proposal:  # noqa: ARG002
        return proposal


class NoisyDrafter(_Wrapper):
    """Adds seeded noise to the draft model's logits: acceptance falls as `size` grows.

    Confidences are those of the spoilt distribution, so that they mean what a worse model's would.
    """

    def __init__(self, inner: HasLogits, size: float, seed: int = 0) -> None:
        """Noise of standard deviation `size`, in logits, keyed by `seed`, position and token."""
        if size < 0:
            raise InvalidRequest(f"the noise has size {size}, not ≥ 0")
        super().__init__(inner)
        inner.perturb_logits(size, seed)
        self.label = f"synthetic: draft logits with noise of {size:g}, seed {seed}"


class RandomDrafter(_Wrapper):
    """Proposes uniformly random tokens, a function of seed and position: nearly never accepted."""

    def __init__(self, inner: Drafter, vocabulary_size: int, seed: int = 0) -> None:
        """Random ids below `vocabulary_size`."""
        if vocabulary_size < 1:
            raise InvalidRequest("an empty vocabulary has no random token")
        super().__init__(inner)
        self._vocabulary_size = vocabulary_size
        self._seed = seed
        self.label = f"synthetic: random draft tokens, seed {seed}"

    def _replace(self, proposal: Proposal, position: int) -> Proposal:  # noqa: ARG002
        generator = random.Random(f"{self._seed} {position}")  # noqa: S311
        token = generator.randrange(self._vocabulary_size)
        return Proposal(token, 1 / self._vocabulary_size)


class WrongDrafter(_Wrapper):
    """Never proposes what the wrapped drafter does, and is as sure of it.

    Around a drafter that the target always accepts, it is one that is never accepted.
    """

    label = "synthetic: draft tokens always wrong"

    def _replace(self, proposal: Proposal, position: int) -> Proposal:  # noqa: ARG002
        return Proposal(proposal.token - 1 if proposal.token else 1, proposal.confidence)
