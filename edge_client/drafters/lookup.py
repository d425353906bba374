"""Drafts without a model: what followed the last tokens before, or what the caller expects.

Answers often repeat their prompt (quotes, code, names), and an edit repeats most of the text that
it changes. Looking for the last few tokens earlier in the text, and taking what came after them,
costs nothing (Saxena 2023, prompt lookup decoding). A prediction is such a text given beforehand.
Where neither knows, the draft model is asked, if there is one.
"""

from __future__ import annotations

from collections import defaultdict

from draftwire.adjust import Adjuster
from draftwire.errors import InvalidRequest
from draftwire.grammar import Matcher
from draftwire.types import SamplingParams, Tokens, VerifyMode
from edge_client.drafter import Drafter, Proposal

NGRAM = 3
"""Tokens that must agree before what followed them is proposed."""

_EXPECTED_NGRAM = 2  # of a prediction, which was given for this very text

_LONGEST_NAME = 8  # tokens whose replacement is expected again
_FARTHEST = 64  # tokens of a prediction that the text may have left out

_LONGEST = 32  # a longer agreement is not told from this
_LATEST = 16  # places looked at


class NgramIndex:
    """A text that is appended to and cut, and where each run of `ngram` tokens stands in it."""

    def __init__(self, tokens: Tokens = (), ngram: int = NGRAM) -> None:
        self.text: list[int] = []
        self._ngram = ngram
        self._followed: dict[tuple[int, ...], list[int]] = defaultdict(list)
        self.extend(tokens)

    def extend(self, tokens: Tokens) -> None:
        """The text goes on."""
        for token in tokens:
            at = len(self.text)
            if at >= self._ngram:
                self._followed[tuple(self.text[at - self._ngram :])].append(at)
            self.text.append(token)

    def truncate(self, length: int) -> None:
        """Only the first `length` tokens are left."""
        while len(self.text) > length:
            del self.text[-1]
            at = len(self.text)
            if at >= self._ngram:
                places = self._followed[tuple(self.text[at - self._ngram :])]
                places.pop()  # rising, so that the last is this one
                if not places:
                    del self._followed[tuple(self.text[at - self._ngram :])]

    def find(self, context: Tokens) -> tuple[int, int]:
        """Where the end of `context` stands in the text: the place after it, and how long it is.

        The longest agreement among the latest places, of equal ones the latest; (0, 0) for none.
        """
        best = (0, 0)
        if len(context) < self._ngram:
            return best
        places = self._followed.get(tuple(context[-self._ngram :]), ())
        for place in places[-_LATEST:]:
            length = self._ngram
            most = min(place, len(context), _LONGEST)
            while length < most and self.text[place - 1 - length] == context[-1 - length]:
                length += 1
            if length >= best[1]:
                best = place, length
        return best


class LookupDrafter:
    """`Drafter` that looks drafts up, and asks `inner` where it finds none.

    `prediction` is what the output is expected to be, after a prompt of `start` tokens: proposed
    from its beginning, and after a difference from wherever the text agrees with it again. What
    the text has instead is then expected further on, too: a name that changed once changes
    everywhere. For one generation: `inner` keeps its own context for the next.
    """

    def __init__(
        self, inner: Drafter | None = None, *, start: int = 0, prediction: Tokens = ()
    ) -> None:
        self._inner = inner
        self._start = start
        self._prediction = NgramIndex(prediction, _EXPECTED_NGRAM)
        self._context = NgramIndex()
        self._grammar: Matcher | None = None
        self._aligned = 0  # leading tokens of the output that are the prediction's
        self._agreed = 0  # leading tokens of the context that the inner one shares
        self.predicting = bool(prediction)
        """Whether the last draft came from the prediction: more will, at no cost."""
        self.found = False
        """Whether it came from the text itself."""
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
        self._aligned = max(0, min(self._aligned, keep - self._start))
        context.truncate(keep)
        if tokens:  # what was drafted before them holds
            self._revise()
        context.extend(tokens)
        proposal = self._look_up()
        if proposal is None or not self._legal(proposal.token):
            self.predicting = self.found = False
            return await self._ask()
        context.extend((proposal.token,))
        return proposal

    async def close(self) -> None:
        """Close the inner drafter."""
        if self._inner is not None:
            await self._inner.close()

    def _look_up(self) -> Proposal | None:
        """The next token of the prediction, or of the place where the text was here before."""
        text, prediction = self._context.text, self._prediction.text
        output = self._align()
        if prediction and self._aligned == output:
            place, length = output, _LONGEST
        else:
            place, length = self._prediction.find(text[-_LONGEST:])
        before, again = self._context.find(text)
        self.predicting = place < len(prediction) and length >= max(1, again)
        self.found = again > 0 and not self.predicting
        if self.predicting:
            return Proposal(prediction[place], _confidence(length))
        return Proposal(text[before], _confidence(again)) if self.found else None

    def _align(self) -> int:
        """See how far output and prediction agree from their beginning; the output's length."""
        text, prediction = self._context.text, self._prediction.text
        output = len(text) - self._start
        while self._aligned < min(output, len(prediction)) and (
            text[self._start + self._aligned] == prediction[self._aligned]
        ):
            self._aligned += 1
        return output

    def _revise(self) -> None:
        """Where the text has come back to the prediction after a difference, correct that.

        And the rest of it alike, if some tokens stand in the place of some others.
        """
        text, prediction = self._context.text[self._start :], self._prediction.text
        output, left = self._align(), self._aligned
        if not prediction or left >= output:
            return
        place, length = self._prediction.find(text[-_LONGEST:])
        length = min(length, output - left, place - left)
        if length < _EXPECTED_NGRAM or place - length - left > _FARTHEST:
            return
        old, new = prediction[left : place - length], text[left : output - length]
        rest = prediction[place:]
        if 0 < len(old) <= _LONGEST_NAME and 0 < len(new) <= _LONGEST_NAME:
            rest = _replaced(rest, old, new)
        self._prediction = NgramIndex([*text, *rest], _EXPECTED_NGRAM)
        self._aligned = output

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


def _replaced(tokens: list[int], old: list[int], new: list[int]) -> list[int]:
    """`tokens` with every `old` in them replaced."""
    result: list[int] = []
    at = 0
    while at < len(tokens):
        if tokens[at : at + len(old)] == old:
            result += new
            at += len(old)
        else:
            result.append(tokens[at])
            at += 1
    return result
