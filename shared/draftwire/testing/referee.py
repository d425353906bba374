"""A referee for clients: from the frames of both sides alone, whether the client keeps the rules.

Frames cross on the wire, so that what a client has read when it sends one is not known. The referee
keeps every view that it can have of the text, and a frame must be right in one of them at least.
Rule numbers are those of docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from draftwire.testing.view import ClientView, reachable
from draftwire.types import (
    Cancel,
    ClientFrame,
    Draft,
    Finished,
    Open,
    Opened,
    ServerFrame,
    ServingLimits,
    Tokens,
    Verdict,
    history_hash,
)


class RuleBroken(Exception):
    """A client did what the wire does not allow. `rule` is the number of the rule."""

    def __init__(self, rule: int, why: str) -> None:
        super().__init__(f"rule {rule}: {why}")
        self.rule = rule
        self.why = why


class Referee:
    """Judges one session of a client over all its streams and generations.

    Give it what the client sends and what it is told, in the order in which it happens at either
    end of the wire. Of an older stream nothing is to be shown once another has been opened.
    """

    def __init__(self, limits: ServingLimits) -> None:
        self.text: list[int] = []  # prompt and all that the client was told
        self.opening: Open | None = None
        self._limits = limits
        self._target = b""
        self._gone = False
        self._drafted = False  # on this stream
        self._verdicts: list[Verdict] = []
        self._views = {ClientView(0, 0)}

    def sent(self, frame: ClientFrame) -> None:
        """The client sends a frame. Raises `RuleBroken`."""
        match frame:
            case Open():
                self._open(frame)
            case Draft():
                self._draft(frame)
            case Cancel():
                pass

    def told(self, frame: ServerFrame) -> None:
        """The client is sent a frame. Raises `ValueError` for a verdict that no client can take."""
        match frame:
            case Opened():
                self._target = frame.target.digest
                self._limits = frame.limits
            case Verdict():
                # What an older stream told beyond this base has not been read, and comes again.
                self.text[frame.base :] = [*self._accepted(frame), *frame.next]
                self._verdicts.append(frame)
            case Finished():
                pass  # it may be lost on its way, and the client open again with all of the text

    def gone(self) -> None:
        """The client is told that its session is gone."""
        self._gone = True

    # ------------------------------------------------------------------ opening (rules 1–8)

    def _open(self, opening: Open) -> None:
        before, text = self.opening, self._history(opening)
        if before is not None:
            _require(
                opening.session_id == before.session_id,
                1,
                "the session goes on under another id than it began with",
            )
            _require(
                opening.attempt > before.attempt,
                1,
                f"attempt {opening.attempt} came after {before.attempt}: it must rise with "
                "every open",
            )
            _require(
                opening.generation >= before.generation,
                1,
                f"generation {opening.generation} came after {before.generation}",
            )
            # Without a token of the output it may not have read `opened` either.
            unread = not opening.expected_target and len(text) <= before.start
            _require(
                opening.expected_target == self._target or unread,
                25,
                "an open must name the target that `opened` has stated, as expected_target",
            )
        if before is not None and opening.generation == before.generation:
            self._resumes(opening, before, text)
        else:
            _require(
                opening.start == len(text),
                1,
                f"a generation starts at {opening.start}, and its prompt has {len(text)} tokens",
            )
            self.text = text
        self.opening, self._gone = opening, False
        self._verdicts, self._views, self._drafted = [], {ClientView(0, len(text))}, False

    def _history(self, opening: Open) -> list[int]:
        history, before = opening.history, self.opening
        again = before is not None and opening.generation == before.generation
        _require(
            not (self._gone and again and history.prefix_length),
            3,
            "after SESSION_GONE the whole history must be sent, and no prefix",
        )
        prefix = self.text[: history.prefix_length]
        _require(
            len(prefix) == history.prefix_length and history_hash(prefix) == history.prefix_hash,
            1,
            f"the prefix of {history.prefix_length} tokens is not of the text that was told",
        )
        return prefix + list(history.tokens)

    def _resumes(self, opening: Open, before: Open, text: list[int]) -> None:
        """The same generation on another stream: it must be the same in all else."""
        _require(
            opening.start == before.start,
            1,
            f"the generation starts at {opening.start}, and did at {before.start}",
        )
        _require(
            _request(opening) == _request(before),
            5,
            "a generation that is opened again must have the same parameters",
        )
        at = next(
            (i for i, pair in enumerate(zip(text, self.text, strict=False)) if pair[0] != pair[1]),
            min(len(text), len(self.text)),
        )
        _require(
            at == len(text),
            1,
            f"the history of {len(text)} tokens holds at {at} what was not committed: the text "
            f"that was told has {len(self.text)} tokens",
        )

    # ------------------------------------------------------------------ drafting (rules 9–11)

    def _draft(self, draft: Draft) -> None:
        _require(self.opening is not None, 1, "a draft came before open")
        _require(
            self._drafted or not draft.epoch,
            4,
            f"epochs start at 0 on a new stream, and the first draft came in epoch {draft.epoch}",
        )
        views = reachable(self._views, self._verdicts)
        fitting = {view for view in views if view.sends(draft)}
        if not fitting:
            raise self._misfit(draft, views)
        self._drafted = True
        self._views = {
            replace(view, tail=view.tail + tuple(draft.tokens), epoch=draft.epoch)
            for view in fitting
        }
        pending = min(len(view.tail) for view in self._views)
        _require(
            pending <= self._limits.max_pending,
            25,
            f"{pending} drafts are out, and {self._limits.max_pending} may be",
        )
        _require(
            draft.credit <= self._limits.max_credit,
            25,
            f"a credit of {draft.credit}, where {self._limits.max_credit} may be stated",
        )

    def _misfit(self, draft: Draft, views: Iterable[ClientView]) -> RuleBroken:
        """Which rule a draft breaks that fits no view."""
        newest = max(views, key=lambda view: view.taken)
        what = f"a draft of base {draft.base} in epoch {draft.epoch} came, but {newest} was due"
        if not self._drafted:
            return RuleBroken(8, f"on a new stream drafts begin where the history ends: {what}")
        if any(draft.base == view.due and draft.epoch < view.epoch for view in views):
            return RuleBroken(
                11, f"the epoch must rise when a verdict rejects drafts that were sent: {what}"
            )
        if any(view.length <= draft.base and draft.epoch > view.epoch for view in views):
            return RuleBroken(
                10, f"drafts that were sent must not be given up without a verdict: {what}"
            )
        if draft.base < newest.due and draft.epoch == newest.epoch:
            return RuleBroken(9, f"each token is sent once in an epoch: {what}")
        return RuleBroken(9, what)

    def _accepted(self, verdict: Verdict) -> Tokens:
        """The tokens that a verdict accepts, which are those of some view."""
        for view in reachable(self._views, self._verdicts):
            if view.taken == len(self._verdicts) and view.after(verdict) is not None:
                return view.tail[: verdict.accepted]
        raise ValueError(f"{verdict} is not about what was sent")


def _request(opening: Open) -> tuple[object, ...]:
    """What makes a generation the one it is, place and text apart."""
    return opening.sampling, opening.stop, opening.mode, opening.grammar, opening.logprobs


def _require(kept: bool, rule: int, why: str) -> None:
    if not kept:
        raise RuleBroken(rule, why)
