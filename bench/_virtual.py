"""A device, a link and a verifier on virtual time: the real code, a table model, chosen speeds.

Everything but the models and the clock is what runs elsewhere: session, controller, service,
engine. So what a change of plan does can be measured exactly, in milliseconds of a processor.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from cloud_verifier.engine import Arrival, Departure, Engine
from cloud_verifier.service import Step, VerifierService
from cloud_verifier.table_target import TableTarget
from cloud_verifier.target import Judgement, Row
from draftwire.testing.clock import run_virtual
from draftwire.testing.memory import MemoryFaults, MemoryTransport
from draftwire.testing.table import TableModel
from draftwire.types import ClientFrame, Draft, ServerFrame, StopRules
from edge_client.branch import Commit
from edge_client.drafter import Drafter
from edge_client.drafters.table import TableDrafter
from edge_client.plan import Controller
from edge_client.session import Generation, Session

PROMPTS = tuple((5, 6, 7, 8, 9, 10, 11, last) for last in (12, 13, 14, 15))


def cpu_pass_s(rows: int) -> float:
    """What a pass takes on the CPU pair, in seconds: of one row, and of more."""
    return 0.113 if rows == 1 else 0.180 + 0.003 * rows


@lru_cache
def target_model() -> TableModel:
    """The target of all runs."""
    return TableModel(states=4096)


@lru_cache
def draft_model(rate: float) -> TableModel:
    """A model that agrees with the target at the share `rate` of the texts' positions."""
    model, low, high = target_model(), 0.0, 4.0
    states = []
    for prompt in PROMPTS:
        text = [*prompt, *model.generate(prompt, 400)]
        states += [model.state_of(text[:end]) for end in range(len(prompt), len(text))]
    while high - low > 1e-3:
        middle = (low + high) / 2
        other = model.perturbed(middle, seed=1)
        if statistics.fmean(model.best(s) == other.best(s) for s in states) > rate:
            low = middle
        else:
            high = middle
    return model.perturbed(low, seed=1)


@dataclass(slots=True)
class AheadClock:
    """The loop's time, ahead of it by the pass that is being computed."""

    ahead_s: float = 0.0

    def __call__(self) -> float:
        return asyncio.get_running_loop().time() + self.ahead_s


class TimedTarget(TableTarget):
    """A table model whose passes take time on the engine's clock."""

    def __init__(self, model: TableModel, clock: AheadClock) -> None:
        super().__init__(model, num_blocks=512)
        self.pass_s: Callable[[int], float] = cpu_pass_s
        self._clock = clock

    def verify(self, rows: Sequence[Row]) -> list[Judgement | None]:
        """Run one pass."""
        self._clock.ahead_s += self.pass_s(sum(len(row.tokens) for row in rows))
        return super().verify(rows)


@dataclass
class World:
    """One verifier, one drafter and the link between them; `frames` are the drafts as they come."""

    rtt_ms: float = 20.0
    rate: float = 0.97
    draft_ms: float = 24.0
    frames: list[Draft] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._clock = AheadClock()
        self.target = TimedTarget(target_model(), self._clock)
        self.service = VerifierService(
            Engine(self.target, clock=self._clock), self._compute, self._clock
        )
        self.drafter = self.new_drafter()
        self.transport = MemoryTransport(
            self._decode, self.target.card, MemoryFaults(delay_s=self.rtt_ms / 2e3)
        )

    def new_drafter(self) -> TableDrafter:
        """A drafter of its rate and speed."""
        return TableDrafter(draft_model(self.rate), draft_time_s=self.draft_ms / 1e3)

    async def _compute(self, step: Step, arrivals: Sequence[Arrival]) -> list[Departure]:
        """A pass takes virtual time; what it has to say is heard afterwards."""
        departures = step(arrivals)
        ahead_s, self._clock.ahead_s = self._clock.ahead_s, 0.0
        await asyncio.sleep(ahead_s)
        return departures

    async def _decode(self, frames: AsyncIterator[ClientFrame]) -> AsyncGenerator[ServerFrame]:
        """The service's, with the drafts noted on their way."""

        async def noted() -> AsyncIterator[ClientFrame]:
            async for frame in frames:
                if isinstance(frame, Draft):
                    self.frames.append(frame)
                yield frame

        async with contextlib.aclosing(self.service.decode(noted())) as answers:
            async for answer in answers:
                yield answer

    def session(self, drafter: Drafter | None) -> Session:
        """A session in this world."""
        card = self.target.card
        return Session(
            self.transport,
            card,
            fingerprint=card.target.vocabulary_fingerprint,
            drafter=drafter,
            clock=asyncio.get_running_loop().time,
        )

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """The verifier runs."""
        running = asyncio.create_task(self.service.run())
        try:
            yield
        finally:
            await self.transport.close()
            running.cancel()
            await asyncio.wait([running])


@dataclass(frozen=True, slots=True)
class Run:
    """A generation: each batch of committed tokens and when it came, seconds from the request."""

    commits: list[tuple[float, list[Commit]]]
    generation: Generation

    @property
    def ms_per_token(self) -> float:
        """Milliseconds a token, from the request to the last token."""
        return self.commits[-1][0] * 1e3 / sum(len(batch) for _, batch in self.commits)


async def generate(
    session: Session,
    controller: Controller,
    max_tokens: int,
    prompt: Sequence[int] = PROMPTS[0],
    then: Callable[[int], object] | None = None,
) -> Run:
    """Generate so many tokens after a prompt; `then` is told how many there are, at each batch."""
    time = asyncio.get_running_loop().time
    started, count = time(), 0
    commits: list[tuple[float, list[Commit]]] = []
    stop = StopRules(max_tokens=max_tokens, ignore_eos=True)
    generation = session.generate(prompt, controller, stop=stop)
    async with contextlib.aclosing(generation.run()) as run:
        async for batch in run:
            commits.append((time() - started, batch))
            count += len(batch)
            if then is not None:
                then(count)
    return Run(commits, generation)


def measure(
    world: World, controller: Controller, max_tokens: int, prompt: Sequence[int] = PROMPTS[0]
) -> Run:
    """One generation in a world, on virtual time."""

    async def scenario() -> Run:
        async with world.serving():
            session = world.session(world.drafter)
            return await generate(session, controller, max_tokens, prompt)

    return run_virtual(scenario())
