"""What is looked up is what stands there, whatever was appended and cut before."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from draftwire.types import SamplingParams
from edge_client.drafter import Proposal
from edge_client.drafters.lookup import LookupDrafter
from edge_client.drafters.ngrams import NGRAM, NgramIndex

tokens = st.integers(0, 3)
texts = st.lists(tokens, max_size=24)
edits = st.lists(st.tuples(st.integers(0, 30), texts), max_size=5)


def agreement(text: list[int], place: int, context: list[int]) -> int:
    """How many tokens before a place of the text are those the context ends with."""
    length = 0
    while length < min(place, len(context)) and text[place - 1 - length] == context[-1 - length]:
        length += 1
    return length


@given(texts, edits, st.sampled_from([2, NGRAM]))
def test_the_longest_agreement_is_found(
    text: list[int], changes: list[tuple[int, list[int]]], ngram: int
) -> None:
    index = NgramIndex(text, ngram)
    for keep, more in changes:
        keep = min(keep, len(index.text))
        index.truncate(keep)
        index.extend(more)
        text = [*text[:keep], *more]
        assert index.text == text
        place, length = index.find(text)
        lengths = [agreement(text, at, text) for at in range(len(text))]
        best = max(lengths, default=0)
        assert length == (best if best >= ngram else 0)
        assert length == 0 or (lengths[place] == best and place < len(text))


class Counting:
    """An inner drafter that proposes the length of its context, and remembers that."""

    max_context = 20

    def __init__(self) -> None:
        self.context: list[int] = []
        self.asked = 0

    async def begin(self, *_: object) -> int:
        return 0

    async def draft(self, keep: int, tokens: list[int]) -> Proposal:
        assert keep <= len(self.context)
        self.asked += 1
        self.context[keep:] = tokens
        self.context.append(len(self.context) % 4)
        return Proposal(self.context[-1], 0.5)

    async def close(self) -> None:
        pass


@given(texts, st.lists(st.tuples(st.integers(0, 4), st.lists(tokens, max_size=3)), max_size=12))
def test_the_inner_drafter_is_asked_about_the_same_text_and_only_where_nothing_is_found(
    prediction: list[int], edits: list[tuple[int, list[int]]]
) -> None:
    async def run() -> None:
        inner = Counting()
        drafter = LookupDrafter(inner, start=2, prediction=prediction)
        text: list[int] = []
        committed = 0
        keep, more = await drafter.begin(SamplingParams(), [1, 2]), [1, 2]
        for back, following in edits:
            text = [*text[:keep], *more]
            committed = len(text) if more else committed
            asked = inner.asked
            proposal = await drafter.draft(keep, more)
            if inner.asked > asked:
                assert proposal is not None
                assert inner.context == [*text, proposal.token]
            found = prediction[: len(text) - 2] == text[2:] and len(text) - 2 < len(prediction)
            if found:
                assert proposal is not None
                assert proposal.token == prediction[len(text) - 2]
            if proposal is None:
                assert len(text) >= inner.max_context
            else:
                text.append(proposal.token)
            keep, more = max(committed, len(text) - back), following

    asyncio.run(run())
