"""What no verifier says that keeps to the rules, and a device does not take in."""

from __future__ import annotations

from draftwire.errors import ModelChanged, ProtocolViolation
from draftwire.types import Finished, Opened, Verdict


def check_opened(opened: Opened, began_on: bytes) -> None:
    """Raise `ModelChanged` for another target than the session began on (empty: on none yet)."""
    digest = opened.target.digest
    if began_on not in (b"", digest):
        raise ModelChanged(
            f"the session began on target {began_on.hex()}, and {digest.hex()} answers",
            remedy="go on with a verifier that serves the same weights and dtype, or start anew",
        )


def check_verdict(verdict: Verdict, *, room: int, vocabulary_size: int, logprobs: bool) -> None:
    """Raise `ProtocolViolation` for a verdict that a text with `room` for tokens can't have.

    `vocabulary_size` is 0 where it isn't known.
    """
    count = verdict.accepted + len(verdict.next)
    if not 0 < count <= room:
        raise _violation(f"a verdict came of {count} tokens, where {room} can follow")
    if vocabulary_size and max(verdict.next, default=0) >= vocabulary_size:
        raise _violation("a verdict came of a token beyond the vocabulary")
    if len(verdict.logprobs) != count * logprobs:
        raise _violation(f"a verdict came with {len(verdict.logprobs)} log-probabilities")


def check_finished(finished: Finished, *, start: int, committed: int) -> None:
    """Raise `ProtocolViolation` for an end that is not within the output."""
    if not start <= finished.length <= committed:
        raise _violation(f"finished at {finished.length}, not in [{start}, {committed}]")


def _violation(what: str) -> ProtocolViolation:
    return ProtocolViolation(what, remedy="open the session again")
