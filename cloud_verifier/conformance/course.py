"""One stream of a scenario: what its client sends, what it is told and when, and how it ends."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from cloud_verifier.conformance.scenarios import Fate
from cloud_verifier.engine import Arrival, Detached
from cloud_verifier.sessions import NO_EPOCH, Stream
from draftwire.errors import DraftwireError, InvalidRequest, SessionGone, Superseded
from draftwire.testing.referee import RuleBroken
from draftwire.types import Cancel, ClientFrame, Draft, Finished, Open, Opened, ServerFrame, Verdict

if TYPE_CHECKING:
    from cloud_verifier.conformance.case import Case


@dataclass(frozen=True, slots=True)
class _Leaving:
    """What the engine has said; a verdict waits until `after` drafts have come."""

    item: ServerFrame | DraftwireError
    after: int


class Course:
    """Steps the engine to its rest after each frame, so that all depends on the frames alone."""

    def __init__(self, case: Case, number: int, fate: Fate) -> None:
        self._case = case
        self._number = number
        self._fate = fate
        self._engine = case.engine
        self._stream = Stream()
        self._leaving: deque[_Leaving] = deque()
        self._drafts = self._empty = 0  # frames that came
        self._impatient = False  # what is held back goes without its frames
        self._opened = self._cancelled = self._forged = self._ended = False

    @property
    def wait_s(self) -> float:
        """How long to wait for a frame, s."""
        return self._case.scenario.hold_s if self._leaving else self._case.patience_s

    @property
    def _fenced(self) -> bool:
        """Whether a later stream owns the session (rule 4)."""
        return self._opened and self._case.course is not self

    def waited(self) -> None:
        """No frame came. Raises `RuleBroken` where one was due."""
        if self._fenced:
            self._fail(Superseded("a later stream opened this session"))
        if self._leaving:
            self._impatient = True
            return
        silent = f"nothing came for {self._case.patience_s:g} s"
        if not self._opened:
            raise RuleBroken(1, f"{silent} on a new stream: it begins with open")
        if self._forged:
            raise RuleBroken(11, f"{silent} after a false verdict: the client must open again")
        raise RuleBroken(21, f"{silent}, and neither drafts nor credit are left here")

    def end(self) -> None:
        """The stream is gone."""
        if not self._ended:
            self._ended = True
            self._case.record.left(self._number)
        self._step(Detached())

    def refuse(self, broken: RuleBroken) -> DraftwireError:
        """End the stream because its client broke a rule; what the client is told."""
        self._ended = True
        error = InvalidRequest(f"{broken}", remedy="see docs/protocol.md")
        self._case.record.failed(self._number, error)
        return error

    # ------------------------------------------------------------------ from the client

    def take(self, frame: ClientFrame) -> None:
        """A frame came. Raises `RuleBroken`."""
        case = self._case
        case.record.sent(self._number, frame)
        if self._fenced:
            return
        if isinstance(frame, Open) == self._opened:
            raise RuleBroken(1, "a stream begins with open, and opens once")
        match frame:
            case Open():
                self._opened, case.course = True, self
                case.opens(frame)
                if self._fate.refusal is not None:
                    self._say(self._fate.refusal("refused, as the scenario has it"))
                    return
            case Draft() if not self._forged:
                self._draft(frame)
            case Cancel():
                self._cancelled = True
            case _:
                pass  # a draft that was on its way
        if not self._forged:
            self._pass_on(frame)

    def _draft(self, draft: Draft) -> None:
        """Judge a draft, and see what it meets."""
        self._drafts += 1
        self._empty += not draft.tokens
        seen, session = self._case.seen, self._stream.session
        self._case.referee.sent(draft)
        if self._empty > 1:
            seen.add("credit again")
        if session is None or not draft.tokens:
            return
        if self._leaving and self._drafts - self._empty > 1:
            seen.add("in flight")
        if draft.epoch <= self._dead_epoch:
            seen.add("dead draft")
        elif draft.base < len(session.tokens):
            held = session.tokens[draft.base : draft.end]
            equal = held == list(draft.tokens[: len(held)])
            seen.add("overlap" if equal else "void draft")

    def _pass_on(self, frame: ClientFrame) -> None:
        """Give the engine a frame, and hold what it says until it may leave."""
        said = self._step(frame)
        for item in said:
            expected = isinstance(item, SessionGone) or type(item) is self._case.scenario.ends
            if isinstance(item, DraftwireError) and not expected:
                raise RuleBroken(12, f"the verifier refuses the frame: {item.code}: {item}")
            self._say(item)
        verdicts = [item for item in said if isinstance(item, Verdict)]
        if sum(verdict.accepted > 0 for verdict in verdicts) > 1:
            self._case.seen.add("partial")
        if verdicts and isinstance(frame, Draft) and self._dead_epoch == frame.epoch:
            self._case.seen.add("rejected")

    @property
    def _dead_epoch(self) -> int:
        session = self._stream.session
        return NO_EPOCH if session is None else session.dead_epoch

    def _step(self, frame: ClientFrame | Detached) -> list[ServerFrame | DraftwireError]:
        """The engine's answers on this stream, until it is at rest."""
        said = self._engine.step([Arrival(self._stream, frame, self._case.clock())])
        while self._engine.has_work:
            said += self._engine.step([])
        return [item for stream, item in said if stream is self._stream]

    def _say(self, item: ServerFrame | DraftwireError) -> None:
        hold = self._case.scenario.hold if isinstance(item, Verdict) else 0
        self._leaving.append(_Leaving(item, self._drafts + hold if hold else 0))

    # ------------------------------------------------------------------ to the client

    def leaving(self) -> ServerFrame | None:
        """What the client is to be told now, if anything. Raises the error that ends the stream."""
        if not self._leaving or self._ended or self._fenced:
            return None
        item, after = self._leaving[0].item, self._leaving[0].after
        finishing = isinstance(self._leaving[-1].item, Finished) and self._drafts
        if after > self._drafts and not (self._impatient or finishing):
            return None
        self._impatient = False
        if self._breaks_at(item):
            if self._fate.forges:
                return self._forge()
            self._fail(self._fate.error("as the scenario has it"))
        self._leaving.popleft()
        if isinstance(item, DraftwireError):
            self._fail(item)
        self._tell(item)
        return item

    def _breaks_at(self, item: ServerFrame | DraftwireError) -> bool:
        """Whether the stream's fate comes before this is told."""
        output = self._case.output
        if isinstance(item, Verdict) and self._fate.loses:
            output += item.accepted + len(item.next)
        return isinstance(item, Verdict | Finished) and output >= self._fate.after

    def _forge(self) -> Verdict:
        """A verdict that is not about where the text ends; nothing true follows it."""
        self._forged = True
        self._leaving.clear()
        verdict = Verdict(base=len(self._case.referee.text) + 1, accepted=0, next=(1,))
        self._case.record.told(self._number, verdict)
        return verdict

    def _tell(self, frame: ServerFrame) -> None:
        case, seen = self._case, self._case.seen
        case.referee.told(frame)
        case.record.told(self._number, frame)
        match frame:
            case Opened() if case.streams > 1:
                seen.add("resumed")
            case Verdict():
                case.output += frame.accepted + len(frame.next)
                if frame.accepted:
                    seen.add("accepted")
                if not frame.timing.pass_rows:
                    seen.add("replayed")
                if self._cancelled:
                    seen.add("verdict after cancel")
            case Finished():
                case.finished, self._ended = frame, True
                if not self._drafts:
                    seen.add("finished at open")
                if frame.length < len(case.referee.text):
                    seen.add("taken back")

    def _fail(self, error: DraftwireError) -> NoReturn:
        """End the stream by an error."""
        self._ended = True
        if self._fenced:
            self._case.record.failed(self._number, error)
            raise error
        if isinstance(error, SessionGone):
            self._case.referee.gone()
        self._case.tells(error, refusal=self._fate.refusal is not None)
        self._case.record.failed(self._number, error)
        self._case.left(self._fate)
        raise error
