"""What a session asks of its controller, and what it tells it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from draftwire.errors import InvalidRequest
from draftwire.types import Hint


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How to go on, until the next event.

    Up to `window` drafted tokens may be unjudged, sent `chunk` at a time with `credit` tokens
    beyond them. With `pipelined` the device drafts on while verdicts are out, else it waits for
    each. With `chunk` 0 the cloud decodes alone: drafts, if any, are not sent but compared with
    what it streams. `asks_first` has a new stream get the first token under way before there are
    drafts; without, the drafts that are there at once open it.
    """

    window: int
    chunk: int
    credit: int
    pipelined: bool = False
    asks_first: bool = True

    def __post_init__(self) -> None:
        if min(self.window, self.chunk, self.credit) < 0 or self.chunk > self.window:
            raise InvalidRequest(f"no plan: {self}", remedy="0 ≤ chunk ≤ window and 0 ≤ credit")

    @property
    def mode(self) -> str:
        """What it comes to: "cloud-alone", "waiting" or "flowing"."""
        if not self.chunk:
            return "cloud-alone"
        return "flowing" if self.pipelined else "waiting"

    @classmethod
    def waiting(cls, num_draft_tokens: int, credit: int = 1) -> Plan:
        """Draft K tokens, send them, wait for the verdict."""
        return cls(window=num_draft_tokens, chunk=num_draft_tokens, credit=credit)

    @classmethod
    def flowing(cls, window: int, chunk: int, credit: int = 1) -> Plan:
        """Draft on while verdicts are out; with credit above 1 the cloud runs on meanwhile."""
        return cls(window=window, chunk=chunk, credit=credit, pipelined=True)

    @classmethod
    def cloud_alone(cls, credit: int = 128) -> Plan:
        """The cloud decodes and streams; the device grants credit and listens.

        128 tokens last over any round trip: more are granted when half are used.
        """
        return cls(window=0, chunk=0, credit=credit)

    @classmethod
    def fixed(cls, num_draft_tokens: int) -> Plan:
        """Always K drafts a round; with 0 the cloud decodes alone."""
        if num_draft_tokens < 0:
            raise InvalidRequest(f"num_draft_tokens is {num_draft_tokens}, not ≥ 0")
        return cls.waiting(num_draft_tokens) if num_draft_tokens else cls.cloud_alone()

    @classmethod
    def shadow(cls, window: int, credit: int = 32) -> Plan:
        """As `cloud_alone`, but the device drafts along: to catch up, or to see how it would do."""
        return cls(window=window, chunk=0, credit=credit)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a controller may look at.

    The drafts in hand, how many of them are sent, how many tokens the text can still grow beyond
    them, and how many committed tokens the drafter has yet to read before it can draft. `alone`:
    the cloud can't be reached, and the device drafts as far as it may whatever the plan is. `late`:
    a draft was asked for `Controller.patience_s` ago and has not come.
    """

    confidences: Sequence[float]
    sent: int
    remaining: int
    behind: int
    alone: bool = False
    late: bool = False


def without_the_next(view: View, credit: int = 32) -> Plan:
    """While a draft does not come: send what there is, and have the cloud go on by itself."""
    drafts = len(view.confidences)
    if drafts > view.sent:
        return Plan.flowing(drafts, drafts, credit)
    return Plan.shadow(max(1, drafts), credit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What a verdict taught. Times in seconds; `rtt_s` only if a frame was answered by it.

    It came `at` that time of the session's clock. `sent` drafts were with the verifier; the
    `first` verdict of a stream may have read a prompt. `outcomes` are the drafts that were judged,
    sent or not: confidence, and whether the target agreed. `pass_rows` counts those of other
    sessions too. `remaining` tokens at most are still to come; a `hint` is the verifier's latest.
    """

    at: float
    committed: int
    sent: int
    first: bool
    outcomes: Sequence[tuple[float, bool]]
    rtt_s: float | None
    queue_s: float
    pass_s: float
    pass_rows: int
    remaining: int
    hint: Hint | None = None


class Controller(Protocol):
    """Chooses how far to draft."""

    @property
    def patience_s(self) -> float:
        """Seconds to wait for a draft before the `View` says that it is late.

        The first one of a generation, which takes as long as the prompt, never is.
        """
        ...

    def plan(self, view: View) -> Plan:
        """The plan until the next event. Called often: cheap, and stable while nothing changes."""
        ...

    def drafted(self, seconds: float, fed: int) -> None:
        """A token was drafted, after `fed` tokens were fed to the draft model.

        Not told of the first one of a generation, which takes as long as the prompt.
        """
        ...

    def judged(self, outcome: Round) -> None:
        """A verdict came."""
        ...

    def explain(self) -> Mapping[str, Any]:
        """What it thinks and why, for a trace; `expected_ms` is what a token should take."""
        ...


class FixedController:
    """Always the same plan, except that the cloud goes on where a draft takes over a second."""

    patience_s = 1.0

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def plan(self, view: View) -> Plan:
        """The plan it was made with."""
        if view.late and self._plan.chunk:
            return without_the_next(view)
        return self._plan

    def drafted(self, seconds: float, fed: int) -> None:
        """Nothing to learn."""

    def judged(self, outcome: Round) -> None:
        """Nothing to learn."""

    def explain(self) -> Mapping[str, Any]:
        """Nothing to explain."""
        return {}
