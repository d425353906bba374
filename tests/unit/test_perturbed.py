"""Drafters made worse on purpose: what they propose, and that their contexts stay true."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from itertools import takewhile
from operator import eq
from typing import TypeVar

import pytest

from draftwire.adjust import Adjuster
from draftwire.errors import InvalidRequest
from draftwire.testing.table import TableModel
from draftwire.types import SamplingParams, Tokens, VerifyMode
from edge_client.drafter import Drafter, Proposal
from edge_client.drafters.perturbed import NoisyDrafter, RandomDrafter, WrongDrafter
from edge_client.drafters.propose import Proposer

MODEL = TableModel(vocabulary_size=64, sharpness=2.0)
PROMPT = [5, 6, 7]
T = TypeVar("T")


class TableDraft:
    """A drafter over the table model, with logits to spoil, and a gate to be cancelled at."""

    max_context = 400

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.closed = False
        self._proposer = Proposer(MODEL.vocabulary_size)
        self._sampling = SamplingParams()

    def perturb_logits(self, size: float, seed: int) -> None:
        self._proposer.perturb_logits(size, seed)

    async def begin(
        self,
        sampling: SamplingParams,
        context: Tokens,
        adjuster: Adjuster | None = None,
        mode: VerifyMode = VerifyMode.MATCH,
    ) -> int:
        assert adjuster is None
        assert mode is VerifyMode.MATCH
        self._sampling = sampling
        return sum(1 for _ in takewhile(bool, map(eq, self.tokens, context)))

    async def draft(self, keep: int, tokens: Tokens) -> Proposal:
        if keep > len(self.tokens) or keep + len(tokens) >= self.max_context:
            raise InvalidRequest("keep or context too long")
        self.tokens[keep:] = tokens
        await self.gate.wait()
        logits = MODEL.logits(MODEL.state_of(self.tokens))
        proposal = self._proposer.propose(logits, len(self.tokens), self._sampling)
        self.tokens.append(proposal.token)
        return proposal

    async def close(self) -> None:
        self.closed = True


WRAPPERS: list[Callable[[TableDraft], Drafter]] = [
    lambda inner: NoisyDrafter(inner, 1.5, seed=3),
    lambda inner: RandomDrafter(inner, MODEL.vocabulary_size, seed=3),
    WrongDrafter,
]
each_wrapper = pytest.mark.parametrize("wrap", WRAPPERS, ids=["noisy", "random", "wrong"])


async def run(drafter: Drafter, count: int, prompt: Tokens = PROMPT) -> list[Proposal]:
    given = [await drafter.draft(0, prompt)]
    while len(given) < count:
        given.append(await drafter.draft(len(prompt) + len(given), []))
    return given


def tokens(proposals: list[Proposal]) -> list[int]:
    return [proposal.token for proposal in proposals]


@each_wrapper
def test_any_rollbacks_end_in_what_a_fresh_drafter_proposes(
    wrap: Callable[[TableDraft], Drafter],
) -> None:
    async def scenario() -> None:
        rng = random.Random(1)
        drafter, context = wrap(TableDraft()), list(PROMPT)
        context.append((await drafter.draft(0, PROMPT)).token)
        for _ in range(200):
            keep = rng.randint(0, len(context))
            if rng.random() < 0.5:
                keep = len(context)
            added = [rng.randrange(64) for _ in range(rng.choice([0, 0, 1, 2]))]
            if keep + len(added) == 0:
                continue
            context[keep:] = added
            given = await drafter.draft(keep, added)
            assert given == await wrap(TableDraft()).draft(0, context)
            context.append(given.token)

    asyncio.run(scenario())


@each_wrapper
def test_a_cancelled_draft_leaves_the_context_it_was_asked_for(
    wrap: Callable[[TableDraft], Drafter],
) -> None:
    async def scenario() -> None:
        inner = TableDraft()
        drafter = wrap(inner)
        first = await drafter.draft(0, PROMPT)
        inner.gate.clear()
        task = asyncio.ensure_future(drafter.draft(4, [9]))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        inner.gate.set()
        with pytest.raises(InvalidRequest):
            await drafter.draft(6, [])
        given = await drafter.draft(5, [])
        assert given == await wrap(TableDraft()).draft(0, [*PROMPT, first.token, 9])

    asyncio.run(scenario())


@each_wrapper
def test_a_refused_draft_changes_no_context(wrap: Callable[[TableDraft], Drafter]) -> None:
    async def scenario() -> None:
        drafter = wrap(TableDraft())
        first = await drafter.draft(0, PROMPT)
        with pytest.raises(InvalidRequest):
            await drafter.draft(2, [1] * 400)
        given = await drafter.draft(4, [8])
        assert given == await wrap(TableDraft()).draft(0, [*PROMPT, first.token, 8])

    asyncio.run(scenario())


@each_wrapper
def test_a_new_generation_shares_what_both_contexts_do(
    wrap: Callable[[TableDraft], Drafter],
) -> None:
    async def scenario() -> None:
        inner = TableDraft()
        drafter = wrap(inner)
        await drafter.draft(0, PROMPT)
        inners = inner.tokens[-1]
        assert await drafter.begin(SamplingParams(), [5, 6, 8]) == 2
        # The inner proposal is part of the context only where it is ours.
        assert await drafter.begin(SamplingParams(), [*PROMPT, inners]) == 3

    asyncio.run(scenario())


@each_wrapper
def test_wrappers_say_that_they_are_synthetic_and_pass_on_the_rest(
    wrap: Callable[[TableDraft], Drafter],
) -> None:
    inner = TableDraft()
    drafter = wrap(inner)
    assert vars(type(drafter)).get("label", getattr(drafter, "label", "")).startswith("synthetic")
    assert drafter.max_context == inner.max_context
    asyncio.run(drafter.close())
    assert inner.closed


def test_noise_spoils_some_proposals_and_not_all() -> None:
    plain = tokens(asyncio.run(run(TableDraft(), 200)))
    prefix_models = asyncio.run(_teacher_forced(NoisyDrafter(TableDraft(), 1.0), plain))
    agreed = sum(map(int.__eq__, plain, prefix_models))
    assert 60 < agreed < 190
    silent = asyncio.run(_teacher_forced(NoisyDrafter(TableDraft(), 0.0), plain))
    assert silent == plain


async def _teacher_forced(drafter: Drafter, text: list[int]) -> list[int]:
    """What the drafter proposes at each position of `text`, given the text before it."""
    given = [(await drafter.draft(0, PROMPT)).token]
    for i, token in enumerate(text[:-1]):
        given.append((await drafter.draft(len(PROMPT) + i, [token])).token)
    return given


def test_random_tokens_are_a_function_of_seed_and_position() -> None:
    def text(seed: int) -> list[int]:
        return tokens(asyncio.run(run(RandomDrafter(TableDraft(), 64, seed), 300)))

    assert text(1) == text(1)
    assert text(1) != text(2)
    assert len(set(text(1))) > 50
    assert {p.confidence for p in asyncio.run(run(RandomDrafter(TableDraft(), 64), 3))} == {1 / 64}


def test_wrong_is_never_right_and_as_sure() -> None:
    plain = asyncio.run(run(TableDraft(), 200))

    async def scenario() -> list[Proposal]:
        drafter = WrongDrafter(TableDraft())
        given = [await drafter.draft(0, PROMPT)]
        for i, right in enumerate(plain[:-1]):
            given.append(await drafter.draft(len(PROMPT) + i, [right.token]))
        return given

    wrong = asyncio.run(scenario())
    assert not any(a.token == b.token for a, b in zip(plain, wrong, strict=True))
    assert [p.confidence for p in wrong] == [p.confidence for p in plain]
    assert all(0 <= p.token < 64 for p in wrong)


@pytest.mark.parametrize(
    "make",
    [lambda: NoisyDrafter(TableDraft(), -1.0), lambda: RandomDrafter(TableDraft(), 0)],
    ids=["noise", "vocabulary"],
)
def test_senseless_sizes_are_refused(make: Callable[[], Drafter]) -> None:
    with pytest.raises(InvalidRequest):
        make()


@each_wrapper
@pytest.mark.parametrize("keep", [-1, 2])
def test_keeping_what_is_not_there_is_refused(
    wrap: Callable[[TableDraft], Drafter], keep: int
) -> None:
    draft: Awaitable[Proposal] = wrap(TableDraft()).draft(keep, [1])
    with pytest.raises(InvalidRequest, match="keep"):
        asyncio.run(_await(draft))


async def _await(awaitable: Awaitable[T]) -> T:
    return await awaitable
