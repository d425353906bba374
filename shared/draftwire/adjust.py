"""What changes raw logits: penalties, logit bias, no end token before `min_tokens`, a grammar.

They depend on the text so far, drafts of the same pass included, so that every row of a round has
its own. An `Adjuster` follows a text forward and back; what it says of a position is a function of
the tokens before it, however they came: a rejected draft leaves nothing behind.

Per token, in float32: the logit is divided by the repetition penalty if above 0, else multiplied
by it, where the token stands in prompt or output; then bias − presence penalty (if it stands in
the output) − frequency penalty × its count there, rounded once from float64, is added. What a
grammar does not allow is removed, which is the same before and after.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftwire.grammar import Mask, Matcher
from draftwire.types import SamplingParams, StopRules, Tokens, common_prefix

LEAST = np.float32(-1e30)
"""Of what a grammar allows: it is kept where the model itself would say none of it."""


class Adjustment(NamedTuple):
    """A change of one row: token ids, each once, with a factor and a term for each, [n].

    `mask` [vocab] says which tokens a grammar allows, None for all.
    """

    ids: NDArray[np.int64]
    penalty: NDArray[np.float32]
    offset: NDArray[np.float32]
    mask: Mask | None = None

    def apply(self, logits: NDArray[np.floating]) -> NDArray[np.float32]:
        """The changed row, float32 [vocab]; `logits` [vocab] are left alone."""
        x = logits.astype(np.float32)
        if self.mask is not None:
            x = np.where(self.mask, np.maximum(x, LEAST), np.float32(-np.inf))
        picked = x[self.ids]
        x[self.ids] = (
            np.where(picked > 0, picked / self.penalty, picked * self.penalty) + self.offset
        )
        return x

    @property
    def forced(self) -> int | None:
        """The only token that is allowed, if there is but one."""
        if self.mask is None or np.count_nonzero(self.mask) != 1:
            return None
        return int(self.mask.argmax())


_NO_IDS = np.empty(0, np.int64)
_NO_CHANGE = np.empty(0, np.float32)


def _penalises(sampling: SamplingParams) -> bool:
    return (
        sampling.repetition_penalty != 1
        or sampling.presence_penalty != 0
        or sampling.frequency_penalty != 0
    )


class Adjuster:
    """Counts the tokens of one generation's text, whose output begins at `start`.

    `end_tokens` are removed from the first `min_tokens` positions of the output. `grammar` is at
    the beginning of the output, and the adjuster's own from then on.
    """

    def __init__(
        self,
        sampling: SamplingParams,
        *,
        start: int,
        min_tokens: int = 0,
        end_tokens: Collection[int] = (),
        grammar: Matcher | None = None,
    ) -> None:
        self.grammar = grammar
        self._sampling = sampling
        self._counting = _penalises(sampling)
        self._start = start
        self._first_end = start + min_tokens
        self._text: list[int] = []
        self._slot: dict[int, int] = {}
        self._ids = array("q")
        self._seen = array("q")  # occurrences in prompt and output
        self._written = array("q")  # occurrences in the output
        biased = list(sampling.logit_bias)
        self._biased = [self._slot_of(token) for token in biased]
        self._bias = [sampling.logit_bias[token] for token in biased]
        self._ends = [self._slot_of(token) for token in end_tokens] if min_tokens else []

    @classmethod
    def of(
        cls,
        sampling: SamplingParams,
        stop: StopRules,
        *,
        start: int,
        eos_token_ids: Iterable[int],
        grammar: Matcher | None = None,
    ) -> Adjuster | None:
        """An adjuster with no text yet; None if these parameters never change raw logits."""
        counts = _penalises(sampling) or sampling.logit_bias or stop.min_tokens
        if not counts and grammar is None:
            return None
        return cls(
            sampling,
            start=start,
            min_tokens=stop.min_tokens,
            end_tokens=stop.ends(eos_token_ids),
            grammar=grammar,
        )

    def extend(self, tokens: Tokens) -> None:
        """The text goes on with `tokens`."""
        self._count(tokens, len(self._text), 1)
        if self.grammar is not None:
            self.grammar.extend(tokens[max(0, self._start - len(self._text)) :])
        self._text += tokens

    def follow(self, text: Tokens) -> None:
        """The text is `text`: what it no longer shares with the old one is forgotten."""
        kept = len(self._text)
        if list(text[:kept]) != self._text:  # as a rule it goes on, which is quickly seen
            kept = common_prefix(self._text, text)
            self._cut(kept)
        self.extend(text[kept:])

    def adjustment(self) -> Adjustment | None:
        """The change of the logits after the text; None for none."""
        mask = None if self.grammar is None else self.grammar.mask()
        held_open = bool(self._ends) and len(self._text) < self._first_end
        if not self._ids or not (self._counting or self._biased or held_open):
            return None if mask is None else Adjustment(_NO_IDS, _NO_CHANGE, _NO_CHANGE, mask)
        sampling = self._sampling
        written = np.array(self._written)
        offset = -sampling.frequency_penalty * written - sampling.presence_penalty * (written > 0)
        offset[self._biased] += self._bias
        if held_open:
            offset[self._held(mask)] = -np.inf
        penalty = np.where(np.array(self._seen) > 0, np.float32(sampling.repetition_penalty), 1)
        return Adjustment(
            np.array(self._ids), penalty.astype(np.float32), offset.astype(np.float32), mask
        )

    def _held(self, mask: Mask | None) -> list[int]:
        """Slots of the end tokens to remove: those with a text only if that leaves a choice."""
        if self.grammar is None or mask is None:
            return self._ends
        others = mask.copy()
        others[[self._ids[slot] for slot in self._ends]] = False
        if others.any():
            return self._ends
        return [slot for slot in self._ends if self._ids[slot] in self.grammar.ends]

    @property
    def complete(self) -> bool:
        """Whether the grammar allows no more text."""
        return self.grammar is not None and self.grammar.complete

    def along(self, drafts: Tokens) -> list[Adjustment | None]:
        """The changes after the text and each of its continuations by drafts, K + 1 of them."""
        length, changes = len(self._text), [self.adjustment()]
        for draft in drafts:
            self.extend((draft,))
            changes.append(self.adjustment())
        self._cut(length)
        return changes

    def _cut(self, length: int) -> None:
        self._count(self._text[length:], length, -1)
        del self._text[length:]
        if self.grammar is not None:
            self.grammar.truncate(max(0, length - self._start))

    def _slot_of(self, token: int) -> int:
        slot = self._slot.setdefault(token, len(self._ids))
        if slot == len(self._ids):
            self._ids.append(token)
            self._seen.append(0)
            self._written.append(0)
        return slot

    def _count(self, tokens: Sequence[int], position: int, by: int) -> None:
        if not self._counting:
            return
        for at, token in enumerate(tokens, start=position):
            slot = self._slot_of(token)
            self._seen[slot] += by
            if at >= self._start:
                self._written[slot] += by
