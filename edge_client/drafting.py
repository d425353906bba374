"""One token at a time from the drafter, while the session does other things."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from draftwire.adjust import Adjuster
from draftwire.types import VerifyMode
from edge_client.branch import Branch
from edge_client.drafter import Drafter, Proposal
from edge_client.request import Request

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Drafted:
    """The drafter's answer to a question asked at `position`, after `forks` turns of the text.

    `fed` tokens were fed for it, in `seconds`; the `first` of a generation read the prompt. No
    proposal: the drafter has none, or it `failed`.
    """

    position: int
    forks: int
    fed: int
    seconds: float
    first: bool
    proposal: Proposal | None
    failed: bool = False


class Late:
    """An answer has not come for as long as it was to be waited for."""


class DraftWorker:
    """Asks the drafter for the next token of a branch and posts the answer.

    One question at a time; while its answer is overdue it is `late`, which is posted, too. The text
    may turn away meanwhile: then the answer is stale, and what the drafter wrote into its context
    is rolled back by the next question. A drafter that fails is not asked again in this
    generation; the cloud goes on alone.
    """

    def __init__(
        self,
        drafter: Drafter | None,
        request: Request,
        adjuster: Adjuster | None,
        post: Callable[[Drafted | Late], None],
        clock: Callable[[], float],
    ) -> None:
        self._drafter = drafter
        self._request = request
        self._adjuster = adjuster
        self._post = post
        self._clock = clock
        self._begun = False
        self._dry_at: tuple[int, int] | None = None
        self._task: asyncio.Task[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self.late = False

    @property
    def busy(self) -> bool:
        """Whether a question is out."""
        return self._task is not None

    @property
    def asked(self) -> set[asyncio.Task[None]]:
        """The question that is out, if it has not been answered."""
        return set() if self._task is None or self._task.done() else {self._task}

    @property
    def max_context(self) -> int:
        """Positions below this can be drafted; 0 without a drafter."""
        return 0 if self._drafter is None else self._drafter.max_context

    def ask(self, branch: Branch, patience_s: float) -> None:
        """Draft the token after the branch's end, which is late after `patience_s`.

        Not the first one of a generation, which takes as long as the prompt.
        """
        if self._drafter is not None:
            keep = branch.agreed if self._begun else 0
            self._task = asyncio.create_task(
                self._draft(self._drafter, keep, branch.since(keep), branch.end, branch.forks)
            )
            branch.agreed = branch.end
            if self._begun:
                loop = asyncio.get_running_loop()
                self._alarm = loop.call_later(patience_s, self._overdue)

    def take(self, drafted: Drafted, branch: Branch) -> None:
        """Put an answer on the branch it was asked for, if it is not stale."""
        self._task = None
        self._rest()
        place = drafted.position, drafted.forks
        if drafted.failed:
            self._drafter = None
        elif drafted.proposal is None:
            self._dry_at = place
        elif place == (branch.end, branch.forks):
            branch.push(drafted.proposal.token, drafted.proposal.confidence, drafted.proposal.q)

    def dry(self, branch: Branch) -> bool:
        """Whether the drafter has said that it has nothing to propose where the branch ends."""
        return self._dry_at == (branch.end, branch.forks)

    def ask_again(self) -> None:
        """Ask even where there was nothing to propose: a drafter may be free to say more now."""
        self._dry_at = None

    def stop(self) -> None:
        """Ask no more; an answer on its way is dropped."""
        self._rest()
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def _overdue(self) -> None:
        self.late = True
        self._post(Late())

    def _rest(self) -> None:
        """Nothing is being waited for."""
        self.late = False
        if self._alarm is not None:
            self._alarm.cancel()

    async def _draft(
        self, drafter: Drafter, keep: int, tokens: list[int], position: int, forks: int
    ) -> None:
        started = self._clock()
        proposal, failed = None, False
        first = not self._begun
        try:
            if first:
                sampling, mode = self._request.sampling, self._request.mode
                if mode is VerifyMode.TYPICAL:  # lossy: the target goes on greedily, a guess too
                    sampling = replace(sampling, temperature=0.0)
                keep = await drafter.begin(sampling, tokens, self._adjuster, mode)
                del tokens[:keep]
                self._begun = True
            proposal = await drafter.draft(keep, tokens)
        except Exception:  # whatever the device can't do, the cloud can
            logger.exception("drafting failed; the cloud goes on alone")
            failed = True
        seconds = self._clock() - started
        self._post(Drafted(position, forks, len(tokens), seconds, first, proposal, failed))
