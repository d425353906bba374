"""What one key may use: sessions at once, tokens and wasted drafts per minute.

Nothing here reads a clock: times are seconds, passed in.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from draftwire.errors import InvalidRequest, QuotaExceeded

OPENS_WITH_S = 5.0
"""A generation opens when at least as many tokens are there as come in that many seconds."""

MOST = 10**12
"""The greatest bound: what is counted by it stays exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Bounds on one key; 0 is no bound.

    `sessions` are generations at once. `tokens_per_minute` counts prompt tokens that were not
    cached and tokens committed, `wasted_drafts_per_minute` drafts judged and not accepted.
    Raises `InvalidRequest` for a bound that is no whole number from 0 to `MOST`.
    """

    sessions: int = 0
    tokens_per_minute: int = 0
    wasted_drafts_per_minute: int = 0

    def __post_init__(self) -> None:
        for name in ("sessions", "tokens_per_minute", "wasted_drafts_per_minute"):
            value = getattr(self, name)
            if type(value) is not int or not 0 <= value <= MOST:
                raise InvalidRequest(
                    f"{name} is {value!r}",
                    remedy="give a whole number from 0 to 10 ** 12; 0 is no bound",
                )


class Bucket:
    """Holds a minute's worth, filled evenly. May be overdrawn, since work is counted when done."""

    __slots__ = ("_at", "_level", "_per_s")

    def __init__(self, per_minute: int, now: float) -> None:
        self._per_s = per_minute / 60
        self._level = float(per_minute)
        self._at = now

    def take(self, amount: int, now: float) -> None:
        """Count what was used."""
        self._level = self.level(now) - amount
        self._at = now

    def level(self, now: float) -> float:
        """What is left, below 0 if overdrawn."""
        return min(60 * self._per_s, self._level + (now - self._at) * self._per_s)

    def wait_s(self, worth_s: float, now: float) -> float:
        """Seconds until there is as much as comes in `worth_s`; 0 if there is."""
        return max(0.0, worth_s - self.level(now) / self._per_s)


class Account:
    """What a key has in use. Streams of one session count once."""

    def __init__(self, quota: Quota, now: float) -> None:
        self._sessions: Counter[bytes] = Counter()
        self.quota = quota
        self.renew(quota, now)

    def renew(self, quota: Quota, now: float) -> None:
        """Take over another quota: what was used so far is forgiven."""
        self.quota = quota
        self._tokens = Bucket(quota.tokens_per_minute, now) if quota.tokens_per_minute else None
        wasted = quota.wasted_drafts_per_minute
        self._wasted = Bucket(wasted, now) if wasted else None

    def open(self, session_id: bytes, now: float) -> None:
        """Count a stream that opens a session. Raises `QuotaExceeded`, and then counts nothing."""
        most = self.quota.sessions
        if most and session_id not in self._sessions and len(self._sessions) >= most:
            raise QuotaExceeded(
                f"{most} generations of this key are in flight, the most it may have",
                remedy="wait for one of them to end",
            )
        self.check_tokens(now, OPENS_WITH_S)
        self._sessions[session_id] += 1

    def close(self, session_id: bytes) -> None:
        """The stream that `open` counted has ended."""
        self._sessions[session_id] -= 1
        if not self._sessions[session_id]:
            del self._sessions[session_id]

    def used(self, tokens: int, wasted: int, now: float) -> None:
        """Count tokens and wasted drafts."""
        if self._tokens is not None:
            self._tokens.take(tokens, now)
        if self._wasted is not None:
            self._wasted.take(wasted, now)

    def check_tokens(self, now: float, worth_s: float = 0.0) -> None:
        """Raise `QuotaExceeded` unless tokens worth that many seconds are left."""
        if self._tokens is not None and (wait_s := self._tokens.wait_s(worth_s, now)) > 0:
            raise QuotaExceeded(
                f"the key has used its {self.quota.tokens_per_minute} tokens per minute",
                remedy=f"go on in {wait_s:.0f} s; nothing is lost",
            )

    def may_waste(self, now: float) -> bool:
        """Whether drafts are still to be judged."""
        return self._wasted is None or self._wasted.level(now) > 0
