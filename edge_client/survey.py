"""Measures a device and its verifier: draft speed by threads, times by a short real run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from draftwire.errors import InternalError, InvalidRequest
from draftwire.types import SamplingParams, StopRules, Tokens
from edge_client.draft_model import drafter_of, load_model
from edge_client.drafter import Drafter, Tokenizer
from edge_client.estimates import Measured
from edge_client.plan import FixedController, Plan, Round, View
from edge_client.request import Request
from edge_client.session import Session

PROMPTS = (
    "Explain in a few paragraphs how a sailing boat moves upwind.",
    "Write a short letter to a friend about a walk in the mountains.",
    "What should one look for when buying a used car?",
    "Write a Python function that reverses a list, and explain it.",
)
"""Several kinds of text: how often drafts fail differs by a factor of ten between them."""

_DRAFTED, _WARM = 24, 4  # tokens timed, and those before

TOKENS = 200
"""Length of the text whose speed-up is foretold, and of those on which drafts are tried."""

_RUNS = (
    (Plan.cloud_alone(), 24),
    (Plan.waiting(4), 16),
    (Plan.flowing(24, 2, 32), TOKENS),
)
"""Plans of the short run, and tokens of each: passes of one row, of five, and of all sizes."""

_LONGEST_S = 10.0  # of a run: whoever is so slow has shown enough


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSpeed:
    """Seconds a drafted token takes on so many threads, and a token of a prompt."""

    threads: int
    token_s: float
    prompt_token_s: float


@dataclass(slots=True)
class Survey:
    """What a short run taught.

    The controller's estimates; how many tokens a prompt has and when a text's first token came, of
    the last one; and what a token takes by the cloud alone, while the device rests.
    """

    measured: Measured = field(default_factory=Measured.of_all)
    start_s: float = 0.0
    prompt_tokens: int = 0
    alone_s: float = 0.0


async def draft_speed(
    path: str | Path, threads: int, *, context: int, providers: Sequence[str] = ()
) -> DraftSpeed:
    """Time a draft model on so many threads, on a context of its own. Raises as loading does."""
    model = load_model(path, threads=threads, providers=providers)
    drafter = drafter_of(model, threads=threads, context=context)
    try:
        prompt = encode(model.tokenizer, PROMPTS[0])
        await drafter.begin(SamplingParams(), prompt)
        started = time.perf_counter()
        await drafter.draft(0, prompt)
        prompt_s = time.perf_counter() - started
        times: list[float] = []
        length = len(prompt) + 1
        while len(times) < _WARM + _DRAFTED:
            started = time.perf_counter()
            if await drafter.draft(length, []) is None:
                raise InternalError("a draft model without a grammar proposed nothing")
            times.append(time.perf_counter() - started)
            length += 1
    finally:
        model.close()
        await drafter.close()
    token_s = median(times[_WARM:])
    each = max(0.0, prompt_s - token_s) / max(1, len(prompt) - 1)
    return DraftSpeed(threads=threads, token_s=token_s, prompt_token_s=each)


async def survey(
    open_session: Callable[[Drafter | None], Session],
    drafter: Drafter,
    prompts: Sequence[Tokens],
    report: Callable[[str], None] = lambda _: None,
) -> Survey:
    """Generate by each of three plans, which shows the times that a controller goes by.

    `open_session` makes a session with a drafter or without. The plans take turns, prompt by
    prompt, so that what changes on the way touches them alike. Raises the verifier's errors.
    """
    result, alone_s, alone_tokens = Survey(), 0.0, 0
    for number, prompt in enumerate(prompts, 1):
        report(f"text {number} of {len(prompts)}")
        for plan, count in _RUNS:
            session = open_session(drafter if plan.chunk else None)
            start_s, rest_s, rest = await _run(session, prompt, plan, count, result.measured)
            if not plan.chunk:
                result.start_s, result.prompt_tokens = start_s, len(prompt)
                alone_s, alone_tokens = alone_s + rest_s, alone_tokens + rest
    result.alone_s = alone_s / max(1, alone_tokens)
    return result


async def _run(
    session: Session, prompt: Tokens, plan: Plan, count: int, measured: Measured
) -> tuple[float, float, int]:
    """Generate so many tokens by a plan, for `_LONGEST_S` at most.

    Returns when the first came, and how long the rest took and how many they were.
    """
    generation = session.generate(
        prompt,
        _Script(plan, measured),
        Request(stop=StopRules(max_tokens=count, ignore_eos=True)),
    )
    started, first_s, last_s, rest = session.clock(), 0.0, 0.0, 0
    async for commits in generation.run():
        if not commits:
            continue
        last_s = session.clock() - started
        if first_s:
            rest += len(commits)
        else:
            first_s = last_s
        if last_s > _LONGEST_S:
            generation.cancel()
    return first_s, last_s - first_s, rest


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """A question in the chat template, or as it is where there is none."""
    try:
        return tokenizer.encode_chat([{"role": "user", "content": text}])
    except InvalidRequest:
        return tokenizer.encode(text)


class _Script(FixedController):
    """A controller that keeps to one plan and learns what any would."""

    def __init__(self, plan: Plan, measured: Measured) -> None:
        super().__init__(plan)
        self._measured = measured

    def plan(self, view: View) -> Plan:
        """The plan; but a drafter that has the prompt to read does so beside the cloud's stream."""
        if self._plan.chunk and view.behind > 1 and not view.sent:
            return Plan.shadow(1)
        return super().plan(view)

    def drafted(self, seconds: float, fed: int) -> None:
        self._measured.drafted(seconds, fed)

    def judged(self, outcome: Round) -> None:
        self._measured.learn(outcome)
