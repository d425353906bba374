"""What a client can hold, as far as the frames on its stream tell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from draftwire.types import Draft, Verdict


@dataclass(frozen=True, slots=True)
class ClientView:
    """What a client holds that has taken the first `taken` verdicts of its stream.

    `tail` are the drafts that it has sent since and knows nothing of yet.
    """

    taken: int
    length: int
    tail: tuple[int, ...] = ()
    epoch: int = 0

    @property
    def due(self) -> int:
        """The base of its next draft (rule 9)."""
        return self.length + len(self.tail)

    def after(self, verdict: Verdict) -> ClientView | None:
        """Rule 11; None where a client with this view would have refused the verdict."""
        if verdict.base != self.length or verdict.accepted > len(self.tail):
            return None
        tail, epoch = self.tail[verdict.accepted :], self.epoch
        for token in verdict.next:
            if tail and tail[0] == token:
                tail = tail[1:]
            elif tail:
                tail, epoch = (), epoch + 1
        length = self.length + verdict.accepted + len(verdict.next)
        return ClientView(self.taken + 1, length, tail, epoch)

    def sends(self, draft: Draft) -> bool:
        """Whether it is this client that sends the draft.

        An epoch that rises where nothing is out gives nothing up, so that it does no harm.
        """
        raised = draft.epoch > self.epoch and not self.tail
        return draft.base == self.due and (draft.epoch == self.epoch or raised)

    def __str__(self) -> str:
        return f"base {self.due} in epoch {self.epoch}"


def reachable(views: Iterable[ClientView], verdicts: Sequence[Verdict]) -> set[ClientView]:
    """The views of a client that has had one of `views`, and may have taken more verdicts since."""
    found = set(views)
    latest = list(found)
    while latest:
        view = latest.pop()
        if view.taken < len(verdicts):
            later = view.after(verdicts[view.taken])
            if later is not None and later not in found:
                found.add(later)
                latest.append(later)
    return found
