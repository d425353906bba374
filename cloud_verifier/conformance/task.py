"""What a scenario asks of a client, and the text that must come of it."""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from cloud_verifier.conformance.scenarios import Scenario
from cloud_verifier.engine import Arrival, Engine
from cloud_verifier.sessions import Stream
from cloud_verifier.table_target import TableTarget
from draftwire.testing.table import EOS, TableModel, table_fingerprint, table_pieces
from draftwire.types import (
    Draft,
    Finished,
    History,
    Open,
    ServingLimits,
    StopRules,
)

VOCABULARY = 64
LIMITS = ServingLimits(max_context=1024, max_pending=16, max_credit=8, max_rows=9)
PROMPT_TOKENS = 6
STOPS_FROM = 7  # output tokens before a stop string


@cache
def _model(seed: int) -> TableModel:
    return TableModel(vocabulary_size=VOCABULARY, states=1024, eos_rate=1 / 60, seed=seed)


def ticks() -> Callable[[], float]:
    """A clock that moves a millisecond whenever it is read, so that figures are always the same."""
    count = itertools.count()
    return lambda: next(count) / 1000


def new_engine(clock: Callable[[], float], *, other_target: bool = False) -> Engine:
    """A verifier that knows no sessions."""
    target = TableTarget(_model(12 if other_target else 11), limits=LIMITS, num_blocks=64)
    return Engine(target, clock=clock)


@dataclass(frozen=True)
class Task:
    """A scenario's prompt, its drafts and the target's own text."""

    scenario: Scenario
    prompt: tuple[int, ...]
    then: tuple[int, ...]

    @cached_property
    def stop(self) -> StopRules:
        """When the text ends."""
        asked = self.scenario
        if not asked.stop_string:
            return StopRules(max_tokens=asked.max_tokens)
        pieces = table_pieces(VOCABULARY)
        said = _model(11).generate(self.prompt, asked.max_tokens)
        strings = _stop_string([pieces[token] for token in said])
        return StopRules(max_tokens=asked.max_tokens, strings=(strings,))

    @cached_property
    def prompts(self) -> list[list[int]]:
        """The prompt of each turn: all that was said before it is part of it."""
        first = list(self.prompt)
        if not self.then:
            return [first]
        return [first, first + self._said(first) + list(self.then)]

    @cached_property
    def text(self) -> list[int]:
        """All that follows the first prompt, tokens."""
        last = self.prompts[-1]
        return last[len(self.prompt) :] + self._said(last)

    @cached_property
    def drafts(self) -> list[int]:
        """The draft for each token of `text`; every so many are wrong."""
        every = self.scenario.wrong_every
        return [
            1 + (token + 1) % (VOCABULARY - 1) if every and index % every == every - 1 else token
            for index, token in enumerate(self.text)
        ]

    def as_json(self, address: str = "") -> dict[str, Any]:
        """The task as a client of the verifier at `address` is given it."""
        asked = self.scenario
        return {
            "scenario": asked.name,
            "about": asked.about,
            "verifier": address,
            "vocabulary_fingerprint": table_fingerprint(VOCABULARY + asked.other_vocabulary).hex(),
            "eos_token_ids": [EOS],
            "prompt": list(self.prompt),
            "then": list(self.then),
            "max_tokens": asked.max_tokens,
            "stop_strings": list(self.stop.strings),
            "temperature": asked.sampling.temperature,
            "seed": asked.sampling.seed,
            "drafts": self.drafts if asked.drafts else [],
            "window": asked.window,
            "chunk": asked.chunk,
            "credit": asked.credit,
            "pipelined": asked.pipelined,
            "cancel_after": asked.cancel_after,
        }

    def _said(self, prompt: Sequence[int]) -> list[int]:
        """What the target says by itself after a prompt."""
        engine, stream = new_engine(ticks()), Stream()
        opening = Open(
            session_id=bytes(16),
            attempt=1,
            generation=1,
            start=len(prompt),
            history=History(tokens=tuple(prompt)),
            vocabulary_fingerprint=table_fingerprint(VOCABULARY),
            sampling=self.scenario.sampling,
            stop=self.stop,
        )
        engine.step([Arrival(stream, opening, 0.0)])
        session = engine.active[opening.session_id]
        while True:
            asking = Draft(base=len(session.tokens), epoch=0, credit=1)
            for _, item in engine.step([Arrival(stream, asking, 0.0)]):
                if isinstance(item, Finished):
                    return session.tokens[len(prompt) : item.length]


@cache
def task_of(scenario: Scenario) -> Task:
    """The task of a scenario: always the same, its prompt unlike all others."""
    for salt in range(1000):
        rng = random.Random(zlib.crc32(f"{scenario.name} {salt}".encode()))  # noqa: S311
        tokens = [rng.randrange(1, VOCABULARY) for _ in range(PROMPT_TOKENS + scenario.then)]
        task = Task(scenario, tuple(tokens[:PROMPT_TOKENS]), tuple(tokens[PROMPT_TOKENS:]))
        if _serves(task):
            return task
    raise AssertionError(f"no prompt serves {scenario.name}")


def _serves(task: Task) -> bool:
    """Whether the text after its prompt is what the scenario is about."""
    asked = task.scenario
    said = _model(11).generate(task.prompt, asked.max_tokens)
    if asked.to_the_end:
        return 8 < len(said) < asked.max_tokens
    if asked.sampling.greedy and EOS in said:
        return False
    if asked.stop_string:
        pieces = table_pieces(VOCABULARY)
        return bool(_stop_string([pieces[token] for token in said]))
    return EOS not in task.text


def _stop_string(pieces: Sequence[bytes]) -> str:
    """What two tokens in the middle of a text say, not said before; empty if that is no text.

    It begins within the first of them, whose beginning stays out of the text with it.
    """
    text = b"".join(pieces)
    for at in range(STOPS_FROM, len(pieces) - 1):
        first, second = pieces[at : at + 2]
        said = first[1:] + second
        whole = len(first) > 1 and len(said) > 2 and (first + second).isascii()
        if whole and text.find(said) == len(b"".join(pieces[:at])) + 1:
            return said.decode()
    return ""
