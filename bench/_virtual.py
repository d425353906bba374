"""A device, a link and a verifier on virtual time: the real code, a table model, chosen speeds.

Everything but the models and the clock is what runs elsewhere: session, controller, service,
engine. So what a change of plan does can be measured exactly, in milliseconds of a processor.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
from bisect import bisect_left
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from bench._link import ProfiledTransport
from cloud_verifier.engine import Arrival, Departure, Engine
from cloud_verifier.service import Step, VerifierService
from cloud_verifier.table_target import TableTarget
from cloud_verifier.target import Judgement, Row
from draftwire.testing.clock import run_virtual
from draftwire.testing.table import TableModel
from draftwire.testing.wire import LinkProfile
from draftwire.types import ClientFrame, Draft, SamplingParams, ServerFrame, StopRules
from edge_client.branch import Commit
from edge_client.drafter import Drafter
from edge_client.drafters.table import TableDrafter
from edge_client.plan import Controller
from edge_client.request import Request
from edge_client.session import Generation, Session

PROMPTS = tuple((5, 6, 7, 8, 9, 10, 11, last) for last in (12, 13, 14, 15))


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Milliseconds a token: by each fixed plan, and by the controller."""

    fixed: Mapping[str, float]
    adaptive: float

    @property
    def best(self) -> str:
        """The best fixed plan."""
        return min(self.fixed, key=lambda name: self.fixed[name])

    @property
    def ratio(self) -> float:
        """The controller over the best fixed plan."""
        return self.adaptive / self.fixed[self.best]

    @property
    def to_cloud(self) -> float:
        """The controller over the cloud alone."""
        return self.adaptive / self.fixed["cloud-alone"]


@dataclass(frozen=True, slots=True)
class Speeds:
    """How fast both sides are: a draft, a pass of one row, and passes of up to so many rows, ms."""

    draft_ms: float
    single_ms: float
    steps_ms: tuple[tuple[int, float], ...]

    def pass_s(self, rows: int) -> float:
        """Seconds that a pass takes: a flight of steps, and a straight line beyond the last."""
        if rows <= 1:
            return self.single_ms / 1e3
        for most, time_ms in self.steps_ms:
            if rows <= most:
                return time_ms / 1e3
        most, time_ms = self.steps_ms[-1]
        return time_ms / 1e3 * rows / most


CPU = Speeds(24, 113, ((6, 180), (17, 240), (33, 290)))
"""The demo pair on processor cores, one a side."""
FAST_CPU = Speeds(24, 45, ((2, 52), (4, 58), (8, 66), (16, 84), (33, 130)))
GPU = Speeds(10, 30, tuple((rows, 30 + 0.3 * rows) for rows in range(2, 65)))
"""A target on a GPU, where rows cost next to nothing, and a phone that drafts as fast."""


def cpu_pass_s(rows: int) -> float:
    """Seconds of a pass of the demo pair."""
    return CPU.pass_s(rows)


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
    """One verifier, one drafter and the link between them; `frames` are the drafts as they come.

    `link` stands for `rtt_ms` where there is more to say, `draft_ms` for that of `speeds`; `seed`
    is of the link's jitter.
    """

    rtt_ms: float = 20.0
    rate: float = 0.97
    draft_ms: float | None = None
    link: LinkProfile | None = None
    speeds: Speeds = CPU
    seed: int = 0
    frames: list[Draft] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._clock = AheadClock()
        self.target = TimedTarget(target_model(), self._clock)
        self.target.pass_s = self.speeds.pass_s
        self.service = VerifierService(
            Engine(self.target, clock=self._clock), self._compute, self._clock
        )
        self.drafter = self.new_drafter()
        link = self.link or LinkProfile(rtt_ms=self.rtt_ms)
        self.transport = ProfiledTransport(self._decode, self.target.card, link, self.seed)

    def new_drafter(self) -> TableDrafter:
        """A drafter of its rate and speed."""
        draft_ms = self.speeds.draft_ms if self.draft_ms is None else self.draft_ms
        return TableDrafter(draft_model(self.rate), draft_time_s=draft_ms / 1e3)

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

    @property
    def tokens(self) -> list[int]:
        """The text."""
        return [token for _, batch in self.commits for token, _ in batch]

    def pace_ms(self, start: int, end: int | None = None) -> float:
        """Milliseconds a token from the batch that brings token `start` to that of `end`."""
        ends = list(itertools.accumulate(len(batch) for _, batch in self.commits))
        first = bisect_left(ends, start)
        last = len(ends) - 1 if end is None else bisect_left(ends, end)
        seconds = self.commits[last][0] - self.commits[first][0]
        return seconds * 1e3 / (ends[last] - ends[first])


async def generate(
    session: Session,
    controller: Controller,
    max_tokens: int,
    prompt: Sequence[int] = PROMPTS[0],
    then: Callable[[int], object] | None = None,
    sampling: SamplingParams | None = None,
) -> Run:
    """Generate so many tokens after a prompt; `then` is told how many there are, at each batch."""
    time = asyncio.get_running_loop().time
    started, count = time(), 0
    commits: list[tuple[float, list[Commit]]] = []
    stop = StopRules(max_tokens=max_tokens, ignore_eos=True)
    request = Request(sampling=sampling or SamplingParams(), stop=stop)
    generation = session.generate(prompt, controller, request)
    async with contextlib.aclosing(generation.run()) as run:
        async for batch in run:
            commits.append((time() - started, batch))
            count += len(batch)
            if then is not None:
                then(count)
    return Run(commits, generation)


def measure(
    world: World,
    controller: Controller,
    max_tokens: int,
    prompt: Sequence[int] = PROMPTS[0],
    then: Callable[[int], object] | None = None,
    sampling: SamplingParams | None = None,
) -> Run:
    """One generation in a world, on virtual time."""

    async def scenario() -> Run:
        async with world.serving():
            session = world.session(world.drafter)
            return await generate(session, controller, max_tokens, prompt, then, sampling)

    return run_virtual(scenario())
