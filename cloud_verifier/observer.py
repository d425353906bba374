"""What the verifier reports of itself, for metrics."""

from __future__ import annotations

from collections.abc import Sequence

from cloud_verifier.sessions import Session
from draftwire.types import Finished, FinishReason, ServerFrame, Verdict, VerifyMode


class Observer:
    """Hears what happens, and ignores it: what a subclass wants to know, it overrides.

    Called on the thread where it happens: must be quick and must not raise. The engine's thread
    speaks of passes and generations, the event loop's of frames; of errors, each of its own.
    """

    def opened(
        self, prompt_tokens: int, cached_tokens: int, mode: VerifyMode, *, resumed: bool
    ) -> None:
        """A stream opened a generation, or resumed one, whose drafts are judged in this mode.

        The KV of `cached_tokens`, which may be more than the prompt's, is there already.
        """

    def passed(self, seconds: float, rows: int, sessions: int) -> None:
        """A pass ran over so many tokens of so many sessions."""

    def judged(self, drafts: int, accepted: int, own: int, queue_s: float) -> None:
        """A session got its verdict: drafts judged and accepted, tokens of the target's own."""

    def delivered(self, tokens: int, since_last_s: float, *, first: bool) -> None:
        """Tokens went out, so long after the session's last ones or, the first, its open."""

    def stale(self, tokens: int) -> None:
        """Draft tokens came too late or on a dead branch, and were dropped without a pass."""

    def preempted(self) -> None:
        """A session's KV was dropped for another's sake; it will be recomputed."""

    def finished(self, reason: FinishReason) -> None:
        """A generation ended by itself or by its client."""

    def refused(self, code: str) -> None:
        """A stream ended with that error."""

    def handshake(self) -> None:
        """A TLS handshake began; gRPC does not tell how it ended. Called on a thread of gRPC's."""

    def connected(self) -> None:
        """A connection brought its first call."""

    def received(self, frame: str, payload_bytes: int) -> None:
        """A frame of that name came from a client."""

    def sent(self, frame: str, payload_bytes: int) -> None:
        """A frame of that name went to a client."""


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
            if session.dropped:
                observer.stale(session.dropped)
        elif isinstance(frame, Finished):
            observer.finished(frame.reason)
