"""When a broken stream is opened again, and when to give up."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from draftwire.errors import (
    DraftwireError,
    Draining,
    ProtocolViolation,
    QuotaExceeded,
    ServerFull,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How a broken stream is opened again.

    Waits grow from `first_wait_s` to `longest_wait_s`, each shortened by a random share; after
    `give_up_after_s` without news the generation ends with the last error, once another stream was
    tried; 0: none is. `cancel_timeout_s` bounds the wait for the verifier's word after a cancel. A
    verifier silent for `silent_after_s` is taken to be away by a generation with `offline_tokens`.
    """

    first_wait_s: float = 0.1
    longest_wait_s: float = 5.0
    give_up_after_s: float = 30.0
    cancel_timeout_s: float = 5.0
    silent_after_s: float = 5.0


class Patience:
    """How long one generation has been without news, and so how long it waits."""

    def __init__(self, policy: RetryPolicy, clock: Callable[[], float] = time.monotonic) -> None:
        self._policy = policy
        self._clock = clock
        self._news_at = clock()
        self._failures = 0

    def news(self) -> None:
        """Something came: start from the shortest wait again."""
        self._news_at = self._clock()
        self._failures = 0

    def pause_s(self, error: DraftwireError, *, opened: bool, mended: bool = False) -> float:
        """Seconds to wait before another attempt.

        Raises `error` if it is not `mended` and another attempt can't mend it, or if it has been
        too long. A verifier that is full or leaving, or a quota that is used up, is tried again
        only by a session that had already `opened`.
        """
        again = mended or error.retryable or isinstance(error, ProtocolViolation)
        refused = isinstance(error, ServerFull | QuotaExceeded | Draining) and not opened
        # A stream that broke without a sound is noticed when it has been too long already.
        most_s = self._policy.give_up_after_s
        tired = self._clock() - self._news_at > most_s and (self._failures > 0 or not most_s)
        if refused or tired or not again:
            raise error
        growth: int = 2 ** min(self._failures, 30)
        longest = min(self._policy.longest_wait_s, self._policy.first_wait_s * growth)
        self._failures += 1
        return longest * random.uniform(0.5, 1.0)  # noqa: S311 (spreads retries)
