"""How far a generation's text may go, and after which tokens it ends."""

from __future__ import annotations

from collections.abc import Sequence

from draftwire.types import ServingLimits, StopRules


class Extent:
    """The end of a text that begins at `start`, as the target and the drafter will see it.

    `target_ends` are tokens that end the target's text; after `draft_ends` the draft model has
    nothing to say. A request that ignores end tokens knows only the stop tokens it names.
    """

    def __init__(
        self,
        start: int,
        stop: StopRules,
        target_ends: frozenset[int],
        draft_ends: frozenset[int],
    ) -> None:
        self._start = start
        self._stop = stop
        self._ends = stop.ends(target_ends)
        self._draft_ends = stop.ends(target_ends | draft_ends)

    def reach(self, limits: ServingLimits) -> int:
        """The longest the text can get, tokens."""
        return self._stop.reach(self._start, limits.max_context)

    def complete(self, committed: Sequence[int], limits: ServingLimits) -> bool:
        """Whether only the verifier's word of the end is still to come."""
        return len(committed) > self._start and (
            len(committed) >= self.reach(limits) or committed[-1] in self._ends
        )

    def ends_draft(self, token: int) -> bool:
        """Whether nothing is drafted after this token."""
        return token in self._draft_ends
