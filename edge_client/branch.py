"""The client's text: what is committed, and what is drafted beyond it.

The rules and their numbers are those of docs/protocol.md. Nothing here waits or sends: drafts
and verdicts go in, frames and committed tokens come out.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NamedTuple

from draftwire.errors import ProtocolViolation
from draftwire.types import CompactDistribution, Draft, ServingLimits, Verdict, VerifyMode
from edge_client.plan import Plan


class Origin(enum.Enum):
    """Where a token came from."""

    ACCEPTED = "accepted"
    """Drafted on the device, accepted by the target."""
    CORRECTED = "corrected"
    """The target's own, in place of a draft that it rejected."""
    CLOUD = "cloud"
    """The target's own, where no draft stood against it."""
    DRAFT = "draft"
    """Drafted on the device, and not judged yet."""


class Commit(NamedTuple):
    """A committed token and where it came from."""

    token: int
    origin: Origin


@dataclass(slots=True)
class Branch:
    """Committed tokens and the tail drafted after them.

    The first `sent` tokens of `tail` are on the wire, unresolved; `confidences` and `stated`,
    what each was drawn from, go with the tail. `granted` is the position up to which the
    verifier may go on without drafts, as far as the client knows. `agreed` leading tokens are in
    the drafter's context, or will be when it has done what it was last asked; `forks` counts how
    often the text turned away from that.
    `outcomes` gathers what the target said of drafts: confidence, and whether it agreed.
    """

    committed: list[int]
    tail: list[int] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
    stated: list[CompactDistribution | None] = field(default_factory=list)
    mode: VerifyMode = VerifyMode.MATCH
    sent: int = 0
    epoch: int = 0
    granted: int = 0
    agreed: int = 0
    forks: int = 0
    outcomes: list[tuple[float, bool]] = field(default_factory=list)

    @property
    def end(self) -> int:
        """Position after the last drafted token."""
        return len(self.committed) + len(self.tail)

    @property
    def unsent(self) -> int:
        """Drafted tokens not on the wire."""
        return len(self.tail) - self.sent

    @property
    def behind(self) -> int:
        """Committed tokens that the drafter has not been given."""
        return max(0, len(self.committed) - self.agreed)

    @property
    def _late(self) -> bool:
        """Whether the only draft is of the very token that the verifier is at by itself.

        Sent, it would be skipped and only pass on its credit, so that the verifier is a token
        ahead of the next one too: rounds of one draft would never again be of use.
        """
        return len(self.tail) == 1 and self.granted == len(self.committed) + 1

    @property
    def idle(self) -> bool:
        """Whether the verifier has nothing to do here, as far as the client knows (rule 21)."""
        return not self.sent and self.granted <= len(self.committed)

    def since(self, position: int) -> list[int]:
        """Committed and drafted tokens from `position` on."""
        if position >= len(self.committed):
            return self.tail[position - len(self.committed) :]
        return self.committed[position:] + self.tail

    def new_stream(self) -> None:
        """Nothing is on the wire of a new stream; the tail may be sent again (rule 8)."""
        self.sent = self.epoch = self.granted = 0

    def push(self, token: int, confidence: float, q: CompactDistribution | None = None) -> None:
        """Append a drafted token, which is in the drafter's context already."""
        self.tail.append(token)
        self.stated.append(q)
        self.confidences.append(confidence)
        self.agreed = self.end

    def drop_unsent(self) -> None:
        """Forget drafts that were never sent; those sent are the verifier's to judge (rule 10)."""
        if self.unsent:
            del self.tail[self.sent :], self.confidences[self.sent :], self.stated[self.sent :]
            self._fork()

    def due(self, plan: Plan, limits: ServingLimits, *, more: bool) -> Draft | None:
        """The frame to send now, if any; `more` says whether another draft may come first.

        Something is always under way: unresolved drafts, credit, or a draft in the making
        (rule 21).
        """
        credit = _credit(plan, limits)
        if plan.chunk == 0:
            if plan.window == 0:
                self.drop_unsent()
            left = self.granted - len(self.committed) - self.sent
            return self.ask(plan, limits) if left <= credit // 2 else None
        if not plan.pipelined and (self.sent or self._late):
            return None
        room = limits.max_pending - self.sent
        if self.unsent and room > 0 and (self.unsent >= plan.chunk or not more):
            if self.mode is VerifyMode.REJECTION and plan.pipelined and more:
                credit = 0  # a bonus would be compared with a draft in flight
            return self.take(min(self.unsent, room), credit)
        if self.idle and not self.tail and not more:
            return self.ask(plan, limits)
        return None

    def ask(self, plan: Plan, limits: ServingLimits) -> Draft:
        """An empty draft: tokens of the verifier's own, as many as the plan grants."""
        return self.take(0, _credit(plan, limits))

    def take(self, count: int, credit: int) -> Draft:
        """The frame that sends the next `count` drafts, and credit beyond them (rule 9)."""
        tokens = tuple(self.tail[self.sent : self.sent + count])
        stated = self.stated[self.sent : self.sent + count]
        draft = Draft(
            base=len(self.committed) + self.sent,
            epoch=self.epoch,
            tokens=tokens,
            credit=credit,
            q=tuple(map(_said, tokens, stated)) if any(stated) else (),
        )
        self.sent += len(tokens)
        self.granted = draft.end + credit
        return draft

    def apply(self, verdict: Verdict) -> list[Commit]:
        """Take a verdict in (rule 11); returns what it commits.

        Raises `ProtocolViolation` if the verdict is not about what stands here.
        """
        if verdict.base != len(self.committed) or verdict.accepted > self.sent:
            raise ProtocolViolation(
                f"verdict of {verdict.accepted} accepted at {verdict.base}, but {self.sent} were "
                f"sent from {len(self.committed)} on",
                remedy="open the session again",
            )
        news = [Commit(token, Origin.ACCEPTED) for token in self.tail[: verdict.accepted]]
        self._advance(verdict.accepted)
        for token in verdict.next:
            origin = Origin.CLOUD
            if self.tail and self.tail[0] == token:
                self._advance(1)
            else:
                if self.tail:
                    origin = Origin.CORRECTED if self.sent else Origin.CLOUD
                    self._reject()
                self.committed.append(token)
            news.append(Commit(token, origin))
        return news

    def truncate(self, length: int) -> None:
        """Keep `length` committed tokens and no drafts (rule 22)."""
        del self.committed[length:]
        self._clear_tail()
        self.sent = 0
        self._fork()

    def _advance(self, count: int) -> None:
        self.outcomes += [(confidence, True) for confidence in self.confidences[:count]]
        self.committed += self.tail[:count]
        del self.tail[:count], self.confidences[:count], self.stated[:count]
        self.sent = max(0, self.sent - count)

    def _reject(self) -> None:
        """The text turns away from the tail: all of it is dead, on both sides."""
        self.outcomes.append((self.confidences[0], False))
        if self.sent:
            self.epoch += 1
            self.granted = 0
        self._clear_tail()
        self.sent = 0
        self._fork()

    def _clear_tail(self) -> None:
        self.tail.clear()
        self.confidences.clear()
        self.stated.clear()

    def _fork(self) -> None:
        self.agreed = min(self.agreed, self.end)
        self.forks += 1


def _said(token: int, q: CompactDistribution | None) -> CompactDistribution:
    """What is stated of a draft: its q, or one-hot beside others that have one."""
    return q or CompactDistribution(tokens=(token,), weights=b"\x01")


def _credit(plan: Plan, limits: ServingLimits) -> int:
    """What to grant: at least a token, or nothing would be under way."""
    return min(max(1, plan.credit), limits.max_credit)
