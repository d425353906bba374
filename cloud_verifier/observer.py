"""What the engine reports of itself, for metrics and logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cloud_verifier.sessions import Session
from draftwire.types import Finished, FinishReason, ServerFrame, Verdict


class Observer(Protocol):
    """Hears what the engine does, on the engine's thread: must be quick and must not raise."""

    def passed(self, seconds: float, tokens: int, sessions: int) -> None:
        """A pass ran over so many tokens of so many sessions."""
        ...

    def judged(self, drafts: int, accepted: int, own: int, queue_s: float) -> None:
        """A session got its verdict: drafts judged and accepted, tokens of the target's own."""
        ...

    def delivered(self, tokens: int, since_last_s: float, *, first: bool) -> None:
        """Tokens went out, so long after the session's last ones or, the first, its open."""
        ...

    def stale(self, tokens: int) -> None:
        """Draft tokens came too late or on a dead branch, and were dropped without a pass."""
        ...

    def opened(self, prompt_tokens: int, cached_tokens: int, *, resumed: bool) -> None:
        """A stream opened a generation, or resumed one."""
        ...

    def finished(self, reason: FinishReason) -> None:
        """A generation ended by itself or by its client."""
        ...

    def refused(self, code: str) -> None:
        """A stream ended with that error."""
        ...

    def preempted(self) -> None:
        """A session's KV was dropped for another's sake; it will be recomputed."""
        ...


class Deaf:
    """Hears nothing."""

    def passed(self, seconds: float, tokens: int, sessions: int) -> None:
        """Ignored."""

    def judged(self, drafts: int, accepted: int, own: int, queue_s: float) -> None:
        """Ignored."""

    def delivered(self, tokens: int, since_last_s: float, *, first: bool) -> None:
        """Ignored."""

    def stale(self, tokens: int) -> None:
        """Ignored."""

    def opened(self, prompt_tokens: int, cached_tokens: int, *, resumed: bool) -> None:
        """Ignored."""

    def finished(self, reason: FinishReason) -> None:
        """Ignored."""

    def refused(self, code: str) -> None:
        """Ignored."""

    def preempted(self) -> None:
        """Ignored."""


def report(
    observer: Observer, session: Session, news: Sequence[ServerFrame], drafts: int = 0
) -> None:
    """Tell the observer what a session's frames say, of which a verdict judged that many drafts."""
    for frame in news:
        if isinstance(frame, Verdict):
            own, first = len(frame.next), frame.base == session.start
            observer.judged(drafts, frame.accepted, own, frame.timing.queue_us / 1e6)
            since_last_s, session.told_at = session.served_at - session.told_at, session.served_at
            observer.delivered(frame.accepted + own, since_last_s, first=first)
        elif isinstance(frame, Finished):
            observer.finished(frame.reason)
