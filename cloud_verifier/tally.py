"""What a verifier has done so far, in plain numbers.

Adding to a number costs far less than a metric of prometheus_client, whose locks every pass would
pay for. Each number is written by one thread, but for errors and handshakes, and may
be read by any.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from cloud_verifier.observer import Observer
from draftwire.errors import BY_CODE
from draftwire.types import FinishReason, VerifyMode

SECONDS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0),
)
SIZES = tuple(float(2**power) for power in range(13))


class Histogram:
    """Counts of values up to each of `bounds`, and beyond the last."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts with their upper bounds, as Prometheus has them."""
        names = [*(f"{bound:.9g}" for bound in self.bounds), "+Inf"]
        sums, seen = [], 0
        for name, count in zip(names, list(self.counts), strict=True):
            seen += count
            sums.append((name, float(seen)))
        return sums


class Tally(Observer):
    """An `Observer` that counts what it hears.

    Names ending in `_s` are seconds. `looked_up` prompt tokens were sought in the KV cache
    when streams opened, `found` of them were there.
    """

    def __init__(self) -> None:
        self.drafts = self.draft_tokens = self.accepted_tokens = self.rejections = 0
        self.held_by_place: Counter[int] = Counter()  # place in its draft: accepted tokens
        self.verdicts = self.committed = self.cloud_alone = 0
        self.stale_tokens = self.wasted_tokens = 0
        self.prompt_tokens = self.looked_up = self.found = self.resumed = self.preemptions = 0
        self.ends = Counter({reason.value: 0 for reason in FinishReason})
        self.modes = Counter({mode.value: 0 for mode in VerifyMode})
        self._lock = threading.Lock()  # errors come from two threads, handshakes from gRPC's
        self.handshakes = self.connections = 0
        self.errors = Counter(dict.fromkeys(BY_CODE, 0))
        self.up_bytes = Counter({"open": 0, "draft": 0, "cancel": 0})
        self.down_bytes = Counter({"opened": 0, "verdict": 0, "finished": 0})
        self.ttft_s, self.itl_s = Histogram(SECONDS), Histogram(SECONDS)
        self.queue_s, self.pass_s = Histogram(SECONDS), Histogram(SECONDS)
        self.rows_of_pass, self.sessions_of_pass = Histogram(SIZES), Histogram(SIZES)

    def opened(
        self, prompt_tokens: int, cached_tokens: int, mode: VerifyMode, *, resumed: bool
    ) -> None:
        """Count an open."""
        self.modes[mode.value] += not resumed
        self.prompt_tokens += 0 if resumed else prompt_tokens
        self.resumed += resumed
        self.looked_up += prompt_tokens
        self.found += min(cached_tokens, prompt_tokens)

    def passed(self, seconds: float, rows: int, sessions: int) -> None:
        """Count a pass."""
        self.pass_s.observe(seconds)
        self.rows_of_pass.observe(rows)
        self.sessions_of_pass.observe(sessions)

    def judged(self, drafts: int, accepted: int, own: int, queue_s: float) -> None:
        """Count a verdict."""
        self.verdicts += 1
        self.queue_s.observe(queue_s)
        if not drafts:
            self.cloud_alone += own
            return
        self.drafts += 1
        self.draft_tokens += drafts
        self.accepted_tokens += accepted
        for place in range(accepted):
            self.held_by_place[place] += 1
        if accepted < drafts:
            self.wasted_tokens += drafts - accepted
            self.rejections += own > 0  # else the text ended within the draft

    def delivered(self, tokens: int, since_last_s: float, *, first: bool) -> None:
        """Count tokens that go out together."""
        self.committed += tokens
        (self.ttft_s if first else self.itl_s).observe(since_last_s)

    def stale(self, tokens: int) -> None:
        """Count drafts that were dropped."""
        self.stale_tokens += tokens

    def preempted(self) -> None:
        """Count a preemption."""
        self.preemptions += 1

    def finished(self, reason: FinishReason) -> None:
        """Count an end."""
        self.ends[reason.value] += 1

    def refused(self, code: str) -> None:
        """Count an error."""
        with self._lock:
            self.errors[code] += 1

    def handshake(self) -> None:
        """Count a handshake."""
        with self._lock:
            self.handshakes += 1

    def connected(self) -> None:
        """Count a connection that is used."""
        self.connections += 1

    def received(self, frame: str, payload_bytes: int) -> None:
        """Count a client's frame."""
        self.up_bytes[frame] += payload_bytes

    def sent(self, frame: str, payload_bytes: int) -> None:
        """Count a frame of ours."""
        self.down_bytes[frame] += payload_bytes
