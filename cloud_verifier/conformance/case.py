"""One scenario under way: a real engine, a client's streams, and a referee between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from cloud_verifier.conformance.course import Course
from cloud_verifier.conformance.scenarios import Fate, Scenario
from cloud_verifier.conformance.task import LIMITS, new_engine, task_of, ticks
from draftwire.errors import BY_CODE, DraftwireError
from draftwire.testing.record import Record
from draftwire.testing.referee import Referee, RuleBroken
from draftwire.types import ClientFrame, Finished, FinishReason, Open, ServerFrame, VerifyMode

SOON_S = 0.02
"""Opening again sooner than this after a refusal is no waiting."""


class Case:
    """What happens in one scenario, from its first open to the client's own account of it.

    `decode` serves the client's streams, one after the other. `patience_s` is how long a client
    may send nothing though nothing is under way.
    """

    def __init__(self, scenario: Scenario, *, patience_s: float = 5.0) -> None:
        self.scenario = scenario
        self.task = task_of(scenario)
        self.patience_s = patience_s
        self.clock = ticks()
        self.engine = new_engine(self.clock)
        self.referee = Referee(LIMITS)
        self.record = Record()
        self.seen: set[str] = set()
        self.broken: RuleBroken | None = None
        self.broken_at = 0  # number of the frame that broke it, or before that; 0: none did
        self.finished: Finished | None = None  # of the last turn
        self.ended_by: DraftwireError | None = None  # an error that is final
        self.streams = 0
        self.course: Course | None = None  # the stream that owns the session
        self.output = 0  # tokens of this turn's output that the client was told
        self._turn = 0
        self._refused_at: float | None = None

    @property
    def over(self) -> bool:
        """Whether there is nothing left for the client to do."""
        finished = self.finished is not None and not self._turns_left
        return finished or self.ended_by is not None or self.broken is not None

    @property
    def _turns_left(self) -> int:
        return len(self.task.prompts) - 1 - self._turn

    def begun(self) -> bool:
        """Whether a client has come."""
        return self.streams > 0

    @property
    def unseen(self) -> list[str]:
        """What the scenario is about and has not come about."""
        return [what for what in self.scenario.shows if what not in self.seen]

    async def decode(self, frames: AsyncIterator[ClientFrame]) -> AsyncGenerator[ServerFrame]:
        """Serve a stream. Raises what ends it; where a rule is broken, `InvalidRequest` with it."""
        number = self.streams
        self.streams += 1
        fate = self.scenario.fates[number] if number < len(self.scenario.fates) else Fate()
        course = Course(self, number + 1, fate)
        coming: asyncio.Task[Any] | None = None
        try:
            while True:
                while (frame := course.leaving()) is not None:
                    yield frame
                    if isinstance(frame, Finished):
                        return
                coming = coming or asyncio.create_task(_next(frames))
                await asyncio.wait({coming}, timeout=course.wait_s)
                if not coming.done():
                    course.waited()
                    continue
                came, coming = coming.result(), None
                if came is None:
                    return
                course.take(came)
        except RuleBroken as broken:
            if self.broken is None:
                self.broken, self.broken_at = broken, len(self.record.entries)
            raise course.refuse(broken) from broken
        finally:
            if coming is not None:
                coming.cancel()
            course.end()

    # ------------------------------------------------------------------ what a stream tells it

    def opens(self, opening: Open) -> None:
        """A stream opens. Raises `RuleBroken`."""
        now = asyncio.get_running_loop().time()
        if self.broken is not None:
            raise self.broken
        if self.ended_by is not None:
            raise RuleBroken(26, f"{self.ended_by.code} is final, but another stream was opened")
        if self._refused_at is not None and now - self._refused_at < SOON_S:
            raise RuleBroken(26, "a client that was refused waits before it opens again")
        self._refused_at = None
        before = self.referee.opening
        self.referee.sent(opening)
        if before is None or opening.generation > before.generation:
            self._begins(opening, first=before is None)
        self.output = len(opening.history) - opening.start

    def _begins(self, opening: Open, *, first: bool) -> None:
        """A generation begins: prompt and parameters must be the task's."""
        if not first:
            if self.finished is None:
                raise RuleBroken(
                    5, "the generation has not finished, but was opened again under a new number"
                )
            self._turn += 1
            self.finished = None
        if self._turn >= len(self.task.prompts):
            raise RuleBroken(26, "a generation began that the task does not ask for")
        prompt = self.task.prompts[self._turn]
        if self.referee.text != prompt:
            what = "the task's" if first else "the first turn's, its output and the task's `then`"
            raise RuleBroken(22 if self._turn else 1, f"the prompt must be {what}: {prompt}")
        asked = (self.scenario.sampling, self.task.stop, VerifyMode.MATCH)
        if (opening.sampling, opening.stop, opening.mode) != asked:
            raise RuleBroken(1, f"the parameters must be the task's: {asked}")
        if self._turn:
            self.seen.add("second turn")

    def tells(self, error: DraftwireError, *, refusal: bool) -> None:
        """A stream ends by an error of the verifier's."""
        if refusal:
            self._refused_at = asyncio.get_running_loop().time()
        if type(error) is self.scenario.ends:
            self.ended_by = error

    def left(self, fate: Fate) -> None:
        """A stream has ended as it was to: what that does to the verifier."""
        if fate.restarts or fate.other_target:
            self.engine = new_engine(self.clock, other_target=fate.other_target)

    # ------------------------------------------------------------------ the end

    def account(self, result: dict[str, Any]) -> None:
        """Compare what the client says has come of it with what should have."""
        if self.broken is None:
            try:
                self._account(result)
            except RuleBroken as broken:
                self.broken = broken

    def _account(self, result: dict[str, Any]) -> None:
        said, ends = result.get("error"), self.scenario.ends
        if ends is not None and said == ends.code and not self.streams:
            self.ended_by = ends("the client saw by itself that nothing will come of it")
        if self.ended_by is not None:
            if said != self.ended_by.code:
                raise RuleBroken(26, f"the app was told {said}, not {self.ended_by.code}")
            return
        if said is not None:
            what = "an error that it should have mended" if said in BY_CODE else "a fault"
            raise RuleBroken(26, f"the client ended with {what}: {said}")
        if self.finished is None or self._turns_left:
            raise RuleBroken(26, "the client ended before its generation had finished")
        text = self.task.text[: self.finished.length - len(self.task.prompt)]
        tokens = result.get("tokens")
        if tokens != text:
            kept = isinstance(tokens, list) and tokens[: len(text)] == text
            raise RuleBroken(22 if kept else 11, f"the client holds {tokens}, the text is {text}")
        if result.get("finish") != self.finished.reason.value:
            raise RuleBroken(
                23 if self.finished.reason is FinishReason.CANCELLED else 22,
                f"the client says {result.get('finish')}, not {self.finished.reason.value}",
            )


async def _next(frames: AsyncIterator[ClientFrame]) -> ClientFrame | None:
    """The next frame, None at the end. Raises `RuleBroken` for one that can't be read."""
    try:
        return await anext(frames, None)
    except DraftwireError as error:
        raise RuleBroken(25, f"a frame can't be read: {error}") from error
