"""Drafts without a model: what followed the last tokens before, or what the caller expects.

Answers often repeat their prompt (quotes, code, names), and an edit repeats most of the text that
it changes. Looking for the last few tokens earlier in the text, and taking what came after them,
costs nothing (Saxena 2023, prompt lookup decoding). A prediction is a text given beforehand. Where
neither knows, the draft model is asked, if there is one.
"""

from __future__ import annotations

from draftwire.adjust import Adjuster
from draftwire.errors import InvalidRequest
from draftwire.grammar import Matcher
from draftwire.types import SamplingParams, Tokens, VerifyMode
from edge_client.drafter import Drafter, Proposal
from edge_client.drafters.expected import ExpectedText
from edge_client.drafters.ngrams import NgramIndex

_TRUSTED = 3  # tokens that must agree with a prediction before a draft model is not asked instead


class LookupDrafter:
    """`Drafter` that looks drafts up, and asks `inner` where it finds none.

    `prediction` is what the output is expected to be, after a prompt of `start` tokens; see
    `ExpectedText`. For one generation: `inner` keeps its own context for the next.
    """

    def __init__(
        self, inner: Drafter | None = None, *, start: int = 0, prediction: Tokens = ()
    ) -> None:
        self._inner = inner
        self._start = start
        self._prediction = ExpectedText(prediction, least=1 if inner is None else _TRUSTED)
        self._context = NgramIndex()
        self._grammar: Matcher | None = None
        self._agreed = 0  # leading tokens of the context that the inner one shares
        self.predicting = bool(prediction)
        """Whether the last draft came from the prediction: more will, at no cost."""
        self.ending = False
        """Whether it was the last token of that."""
        self.found = False
        """Whether it came from the text itself."""
        self.agreed = 0
        """How many tokens before it were the prediction's, if it came from there."""
        self.asks = True
        """Whether the inner drafter is asked where nothing is found."""

    @property
    def max_context(self) -> int:
        """No bound of its own; beyond the inner drafter's there are fewer drafts."""
        return 1 << 31

    async def begin(
        self,
        sampling: SamplingParams,
        context: Tokens,
        adjuster: Adjuster | None = None,
        mode: VerifyMode = VerifyMode.MATCH,
    ) -> int:
        """Start the generation; of its parameters only a grammar matters to what is looked up."""
        if adjuster is not None and adjuster.grammar is not None:
            self._grammar = adjuster.grammar.fresh()  # the adjuster is the inner one's
        if self._inner is not None:
            self._agreed = await self._inner.begin(sampling, context, adjuster, mode)
        return 0

    async def draft(self, keep: int, tokens: Tokens) -> Proposal | None:
        """Truncate to `keep` tokens, append `tokens`, propose the next: looked up, or the model's.

        None if there is nothing to propose. Raises what the inner drafter does.
        """
        context = self._context
        if not 0 <= keep <= len(context.text):
            raise InvalidRequest(f"can't keep {keep} of {len(context.text)} tokens")
        if context.text:  # before the first draft the inner one may share what is to come
            self._agreed = min(self._agreed, keep)
        context.truncate(keep)
        self._prediction.truncate(keep - self._start)
        if tokens:  # what was drafted before them holds
            self._prediction.revise(context.text[self._start :])
        context.extend(tokens)
        proposal = self._look_up()
        if proposal is None or not self._legal(proposal.token):
            self.predicting = self.ending = self.found = False
            return await self._ask()
        context.extend((proposal.token,))
        return proposal

    async def close(self) -> None:
        """Close the inner drafter."""
        if self._inner is not None:
            await self._inner.close()

    def _look_up(self) -> Proposal | None:
        """The next token of the prediction, or of the place where the text was here before."""
        text, prediction = self._context.text, self._prediction.tokens
        place, agreed = self._prediction.find(text[self._start :])
        before, again = self._context.find(text)
        self.predicting = place < len(prediction) and agreed >= max(1, again)
        self.ending = self.predicting and place + 1 == len(prediction)
        self.found = again > 0 and not self.predicting
        self.agreed = agreed
        if self.predicting:
            return Proposal(prediction[place], _confidence(agreed))
        return Proposal(text[before], _confidence(again)) if self.found else None

    def _legal(self, token: int) -> bool:
        if self._grammar is None:
            return True
        self._grammar.follow(self._context.text[self._start :])
        mask = self._grammar.mask()
        return mask is None or (token < mask.size and bool(mask[token]))

    async def _ask(self) -> Proposal | None:
        """The inner drafter's proposal, after what it has not been told."""
        text, inner = self._context.text, self._inner
        if inner is None or not self.asks or len(text) >= inner.max_context:
            return None
        kept, self._agreed = self._agreed, len(text)  # so it is, should we stop waiting
        try:
            proposal = await inner.draft(kept, text[kept:])
        except InvalidRequest:  # which changes no context
            self._agreed = kept
            raise
        if proposal is not None:
            self._context.extend((proposal.token,))
            self._agreed += 1
        return proposal


def _confidence(length: int) -> float:
    """How likely what followed `length` equal tokens follows them again: a guess to calibrate."""
    return length / (length + 1)
