"""While the cloud can't be reached, the draft goes on alone."""

from __future__ import annotations

from edge_client.branch import Branch
from edge_client.plan import Plan


class Offline:
    """How far the draft has gone by itself, and what is still to be said about that.

    Up to `limit` drafts stand past the committed text; 0: the device waits for the cloud. They
    are drafts like all others: sent when the cloud is back, whatever plan there is then, and
    judged. `drafted` counts those made while it was away. A cloud that owes something and is
    silent for `silent_after_s` seconds is taken to be away: of a network that just goes, gRPC
    tells after half a minute.
    """

    def __init__(self, limit: int, branch: Branch, silent_after_s: float) -> None:
        self.cut_off = False
        self.drafted = 0
        self._limit = limit
        self._silent_after_s = silent_after_s
        self._branch = branch
        self._end = 0  # position after the last draft in hand when the cloud was away …
        self._forks = branch.forks  # … as long as the text has not turned away from it

    def lost(self) -> None:
        """The cloud can't be reached, or does not answer."""
        if self._limit:
            self.cut_off = True
            self._mark()

    def found(self) -> None:
        """The cloud has been heard."""
        self.cut_off = False

    def grew(self, count: int) -> None:
        """So many drafts have come."""
        if self.cut_off:
            self.drafted += count
            self._mark()

    @property
    def patient_s(self) -> float | None:
        """How long to wait for the cloud's word before going on alone; None: for ever."""
        return self._silent_after_s if self._limit and not self.cut_off else None

    @property
    def unjudged(self) -> int:
        """Leading drafts of the tail that stood there while the cloud was away."""
        turned_away = self._forks != self._branch.forks
        return 0 if turned_away else max(0, self._end - len(self._branch.committed))

    @property
    def plan(self) -> Plan | None:
        """The plan in place of the controller's: draft on alone, then send what there is."""
        if self.cut_off:
            return Plan.flowing(self._limit, self._limit)
        if self.unjudged > self._branch.sent:
            length = len(self._branch.tail)
            return Plan.flowing(length, length)
        return None

    def _mark(self) -> None:
        self._end, self._forks = self._branch.end, self._branch.forks
