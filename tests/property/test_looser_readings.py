"""The random worlds can fail: each looser reading of a wire rule is caught by some of them.

A reading is a small change to the real code. Rule numbers are those of docs/protocol.md, whose
last section lists what these readings did in the simulation that preceded the code.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import pytest
from wire_world import World

from cloud_verifier import kv_cache, sessions
from cloud_verifier.engine import Arrival, Departure, Detached, Engine
from cloud_verifier.kv_cache import BlockPool, BlockTable
from cloud_verifier.sessions import Session, Stream
from cloud_verifier.table_target import TableTarget
from cloud_verifier.target import Judgement, Row
from draftwire.errors import DraftwireError
from draftwire.grammar import Matcher
from draftwire.testing.clock import Deadlock, run_virtual
from draftwire.types import (
    Draft,
    FinishReason,
    Hint,
    Open,
    ServerFrame,
    ServingLimits,
    Timing,
    Tokens,
    Verdict,
)
from edge_client.branch import Branch, Commit
from edge_client.plan import Plan
from edge_client.session import Generation

Loosen: TypeAlias = Callable[[pytest.MonkeyPatch], None]

WORLDS = 300
TIMEOUT_S = 150.0  # of virtual time; sound worlds take up to 70, of which 61 check the end
CAUGHT = (AssertionError, DraftwireError, TimeoutError, Deadlock)

READINGS: list[Loosen] = []


def reading(loosen: Loosen) -> Loosen:
    READINGS.append(loosen)
    return loosen


# ------------------------------------------------------------------ the verifier's


@reading
def a_base_above_committed_is_dropped_silently(patch: pytest.MonkeyPatch) -> None:
    """Rule 12: it is a protocol error, or the next chunk of a pipeline."""
    take = Session.draft

    def draft(self: Session, frame: Draft) -> int:
        if frame.base > len(self.tokens):
            return len(frame.tokens)
        return take(self, frame)

    patch.setattr(Session, "draft", draft)


@reading
def a_stale_overlap_leaves_its_epoch_alive(patch: pytest.MonkeyPatch) -> None:
    """Rule 13: what was drafted after the stale tokens must not be taken for a continuation."""
    take = Session.draft

    def draft(self: Session, frame: Draft) -> int:
        dead, pending = self.dead_epoch, list(self.pending)
        stale = take(self, frame)
        if self.dead_epoch != dead:
            self.dead_epoch, self.pending = dead, pending
        return stale

    patch.setattr(Session, "draft", draft)


@reading
def credit_is_added(patch: pytest.MonkeyPatch) -> None:
    """Rule 13: it is replaced, so that what is stated again is not granted twice."""
    take = Session.draft

    def draft(self: Session, frame: Draft) -> int:
        before, anchor = self.credit, self.anchor
        stale = take(self, frame)
        if self.anchor != anchor or self.credit != before:
            self.credit += before
        return stale

    patch.setattr(Session, "draft", draft)


@reading
def accepted_counts_from_the_drafts_base(patch: pytest.MonkeyPatch) -> None:
    """Rule 19: it counts from the committed length, which credit may have carried past the base."""
    bases: dict[Session, int] = {}
    take, judge = Session.draft, Session.commit

    def draft(self: Session, frame: Draft) -> int:
        bases[self] = frame.base
        return take(self, frame)

    def commit(
        self: Session, judged: int, judgement: Judgement, timing: Timing, hint: Hint
    ) -> list[ServerFrame]:
        (verdict, *rest) = judge(self, judged, judgement, timing, hint)
        assert isinstance(verdict, Verdict)
        base = min(bases.get(self, verdict.base), verdict.base) if judged else verdict.base
        moved = replace(verdict, base=base, accepted=verdict.accepted + verdict.base - base)
        return [moved, *rest]

    patch.setattr(Session, "draft", draft)
    patch.setattr(Session, "commit", commit)


@reading
def the_dead_epoch_survives_a_reconnect(patch: pytest.MonkeyPatch) -> None:
    """Rule 4: epochs belong to a stream and start at 0."""
    forget = Session._forget_stream

    def forget_stream(self: Session) -> None:
        dead = getattr(self, "dead_epoch", sessions.NO_EPOCH)
        forget(self)
        self.dead_epoch = dead

    patch.setattr(Session, "_forget_stream", forget_stream)


@reading
def opening_again_leaves_out_the_generations_start(patch: pytest.MonkeyPatch) -> None:
    """Rule 1: without it max_tokens counts from the history's end."""
    attach = Session.open

    def opened(
        self: Session, opening: Open, history: list[int], stream: Stream, grammar: Matcher | None
    ) -> bool:
        if opening.generation != self.generation:
            opening = replace(opening, start=len(history))
        elif self.tokens[: len(history)] == history:
            opening = replace(opening, start=self.start)
        return attach(self, opening, history, stream, grammar)

    patch.setattr(Session, "open", opened)


@reading
def stop_rules_are_not_checked_on_an_open(patch: pytest.MonkeyPatch) -> None:
    """Rule 6: the history may hold the end already."""
    begin = Session._begin

    def begun(self: Session, opening: Open, history: list[int], grammar: Matcher | None) -> None:
        begin(self, opening, history, grammar)
        self.finish = None

    patch.setattr(Session, "_begin", begun)


@reading
def the_older_stream_is_not_fenced(patch: pytest.MonkeyPatch) -> None:
    """Rule 4: its frames are ignored from the open of the later one on."""
    apply = Engine._apply

    def applied(self: Engine, arrival: Arrival) -> None:
        session = arrival.stream.session
        if session is not None and session.stream not in (None, arrival.stream):
            owner, session.stream = session.stream, arrival.stream
            arrival.stream.closed = False
            apply(self, arrival)
            session.stream = owner
        else:
            apply(self, arrival)

    patch.setattr(Engine, "_apply", applied)


@reading
def attempts_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    """Rule 3: an open that was under way when its link broke may come after its successor."""
    resolve = Session.resolve

    def resolved(self: Session, opening: Open) -> list[int]:
        return resolve(self, replace(opening, attempt=self.attempt + 1))

    patch.setattr(Session, "resolve", resolved)


@reading
def frames_are_applied_during_a_pass(patch: pytest.MonkeyPatch) -> None:
    """Rule 2: an open that changes the text under a pass makes its judgement wrong."""

    def step(self: Engine, arrivals: Sequence[Arrival]) -> list[Departure]:
        shares = self._schedule()
        started = self._clock()
        judgements = self._run(shares)
        for arrival in arrivals:
            self._apply(arrival)
        self._expire(self._clock())
        try:
            if judgements:
                self._commit(shares, judgements, started)
        except IndexError as error:
            raise AssertionError("a pass ended on blocks that its session has lost") from error
        departures, self._departures = self._departures, []
        return departures

    patch.setattr(Engine, "step", step)


@reading
def a_recovery_draw_that_equals_the_draft_is_a_mismatch(patch: pytest.MonkeyPatch) -> None:
    """Rule 17: the client, which compares tokens, sees none and goes on in a dead epoch."""
    judge, commit = TableTarget._judge, Session.commit
    turns = itertools.count()

    def judged_by_draw(self: TableTarget, row: Row, states: Sequence[int]) -> Judgement:
        judgement = judge(self, row, states)
        if judgement.accepted and next(turns) % 5 == 0:
            drafts = row.tokens[len(row.tokens) - row.drafts :]
            return Judgement(judgement.accepted - 1, drafts[judgement.accepted - 1])
        return judgement

    def committed(
        self: Session, judged: int, judgement: Judgement, timing: Timing, hint: Hint
    ) -> list[ServerFrame]:
        frames = commit(self, judged, judgement, timing, hint)
        if judgement.accepted < judged:
            self.dead_epoch = self.epoch
            self.pending.clear()
        return frames

    patch.setattr(TableTarget, "_judge", judged_by_draw)
    patch.setattr(Session, "commit", committed)


@reading
def a_bonus_is_not_compared_with_what_is_pending(patch: pytest.MonkeyPatch) -> None:
    """Rule 16: drafts of a chunk that the bonus contradicts are void."""

    def reconcile(self: Session, out: Tokens, accepted: int) -> int:
        if accepted < min(len(self.pending), len(out)) and accepted + 1 < len(out):
            raise AssertionError("a pass gives one token after the accepted ones")
        rejected = len(out) > accepted and len(self.pending) > accepted
        del self.pending[: accepted + rejected]
        return accepted

    patch.setattr(Session, "_reconcile", reconcile)


@reading
def stop_rules_are_checked_at_the_end_of_a_verdict_only(patch: pytest.MonkeyPatch) -> None:
    """Rule 18: an end token may stand in the middle of what was accepted."""

    def stop_within(self: Session, base: int, out: Tokens) -> tuple[int, FinishReason | None]:
        if out and out[-1] in self.end_tokens:
            return len(out), FinishReason.STOP
        if base + len(out) >= self.reach:
            return min(len(out), self.reach - base), FinishReason.LENGTH
        return len(out), None

    patch.setattr(Session, "_stop_within", stop_within)


@reading
def length_is_checked_before_the_end_token(patch: pytest.MonkeyPatch) -> None:
    """Rule 18: a text that ends in its last allowed place has stopped, not run out."""
    stop_within = Session._stop_within

    def checked(self: Session, base: int, out: Tokens) -> tuple[int, FinishReason | None]:
        kept, reason = stop_within(self, base, out)
        if reason and base + kept >= self.reach:
            reason = FinishReason.LENGTH
        return kept, reason

    patch.setattr(Session, "_stop_within", checked)


@reading
def kv_is_not_rolled_back(patch: pytest.MonkeyPatch) -> None:
    """Rule 20: KV of rejected drafts must not be taken for that of the text."""
    commit = Session.commit

    def committed(
        self: Session, judged: int, judgement: Judgement, timing: Timing, hint: Hint
    ) -> list[ServerFrame]:
        fed = len(self.tokens) + judged
        frames = commit(self, judged, judgement, timing, hint)
        self.kv.length = fed
        return frames

    patch.setattr(Session, "commit", committed)


@reading
def kv_is_kept_when_the_text_is_cut(patch: pytest.MonkeyPatch) -> None:
    """Rule 5: a new turn keeps KV of the common prefix only."""

    def adopt(self: BlockPool, table: BlockTable, tokens: Tokens) -> None:
        blocks = kept.get(table, [])[: (len(tokens) - 1) // self.block_size]
        if table.blocks or any(self._holders[block] for block in blocks):
            return
        for block in blocks:
            if block in self._cached:
                del self._cached[block]
            else:
                self._free.remove(block)
            self._holders[block] = 1
            table.blocks.append(block)
        table.length = len(blocks) * self.block_size
        table.keys = [bytes([index]) for index in range(len(blocks))]

    def released(self: BlockPool, table: BlockTable, now: float = 0.0) -> None:
        if table.blocks:
            kept[table] = table.blocks[: table.length // self.block_size]
        release(self, table, now)

    kept: dict[BlockTable, list[int]] = {}
    release = BlockPool.release
    patch.setattr(BlockPool, "adopt", adopt)
    patch.setattr(BlockPool, "release", released)


@reading
def a_blocks_key_leaves_out_what_comes_before_it(patch: pytest.MonkeyPatch) -> None:
    """Equal tokens have equal KV after equal tokens only."""
    key = kv_cache._key
    patch.setattr(kv_cache, "_key", lambda _, tokens: key(b"", tokens))


@reading
def pending_drafts_survive_a_reconnect(patch: pytest.MonkeyPatch) -> None:
    """Rule 4: the client takes its whole tail for unsent, and may drop it."""
    forget = Session._forget_stream

    def forget_stream(self: Session) -> None:
        pending = getattr(self, "pending", [])
        forget(self)
        self.pending = pending

    patch.setattr(Session, "_forget_stream", forget_stream)


@reading
def what_was_missed_is_not_replayed(patch: pytest.MonkeyPatch) -> None:
    """Rule 5: the client has not seen what was committed while its link was broken."""
    greet = Session.greeting

    def greeting(self: Session, known: int) -> list[ServerFrame]:
        return [frame for frame in greet(self, known) if not isinstance(frame, Verdict)]

    patch.setattr(Session, "greeting", greeting)


@reading
def a_cut_stream_does_not_detach(patch: pytest.MonkeyPatch) -> None:
    """Rule 23: a client that vanished would hold its slot and KV for ever."""
    apply = Engine._apply

    def applied(self: Engine, arrival: Arrival) -> None:
        if not isinstance(arrival.frame, Detached):
            apply(self, arrival)

    patch.setattr(Engine, "_apply", applied)


# ------------------------------------------------------------------ the client's


@reading
def one_verdict_is_awaited_for_each_draft(patch: pytest.MonkeyPatch) -> None:
    """Rule 19: frames that were skipped or dropped get none."""
    due, take, new_stream = Generation._due, Generation._take_verdict, Branch.new_stream
    owed: dict[Branch, int] = {}

    patch.setattr(Branch, "__hash__", object.__hash__)

    def counted(self: Generation, plan: Plan) -> Draft | None:
        if owed.get(self._branch, 0) > 0 and not plan.pipelined:
            return None
        frame = due(self, plan)
        if frame is not None:
            owed[self._branch] = owed.get(self._branch, 0) + 1
        return frame

    def taken(self: Generation, verdict: Verdict) -> list[Commit]:
        owed[self._branch] = owed.get(self._branch, 0) - 1
        return take(self, verdict)

    def reopened(self: Branch) -> None:
        owed[self] = 0
        new_stream(self)

    patch.setattr(Generation, "_due", counted)
    patch.setattr(Generation, "_take_verdict", taken)
    patch.setattr(Branch, "new_stream", reopened)


@reading
def credit_of_a_dead_frame_counts(patch: pytest.MonkeyPatch) -> None:
    """Rule 11: it went with its frame; a client that counts on it waits for ever."""
    reject = Branch._reject

    def rejected(self: Branch) -> None:
        granted = self.granted
        reject(self)
        self.granted = granted

    patch.setattr(Branch, "_reject", rejected)


@reading
def sent_drafts_are_discarded_by_the_client_alone(patch: pytest.MonkeyPatch) -> None:
    """Rule 10: the verifier judges them all the same."""

    def drop(self: Branch) -> None:
        if self.tail:
            self.epoch += self.sent > 0
            self.granted = 0
            self.truncate(len(self.committed))

    patch.setattr(Branch, "drop_unsent", drop)


@reading
def a_rejection_does_not_raise_the_epoch(patch: pytest.MonkeyPatch) -> None:
    """Rule 11: the verifier drops all that comes in the epoch it has declared dead."""
    reject = Branch._reject

    def rejected(self: Branch) -> None:
        epoch = self.epoch
        reject(self)
        self.epoch = epoch

    patch.setattr(Branch, "_reject", rejected)


@reading
def the_tail_counts_as_sent_on_a_new_stream(patch: pytest.MonkeyPatch) -> None:
    """Rule 8: the verifier has forgotten what was pending."""

    def new_stream(self: Branch) -> None:
        self.epoch = self.granted = 0

    patch.setattr(Branch, "new_stream", new_stream)


@reading
def a_client_opens_with_the_same_attempt(patch: pytest.MonkeyPatch) -> None:
    """Rule 1: the attempt rises with every open."""
    opened = Generation._open

    async def again(self: Generation, stack: Any) -> Any:
        if self.opens:
            self._session.attempt -= 1
        return await opened(self, stack)

    patch.setattr(Generation, "_open", again)


@reading
def a_new_turn_keeps_the_generations_number(patch: pytest.MonkeyPatch) -> None:
    """Rule 5: it would replay the end of the one before."""
    opened = Generation._open

    async def again(self: Generation, stack: Any) -> Any:
        self._session.generation = 1
        return await opened(self, stack)

    patch.setattr(Generation, "_open", again)


@reading
def credit_is_stated_with_drafts_only(patch: pytest.MonkeyPatch) -> None:
    """Rule 21: a client that can't draft must state it by itself."""
    due = Branch.due

    def drafts_only(self: Branch, plan: Plan, limits: ServingLimits, *, more: bool) -> Draft | None:
        before = self.granted
        frame = due(self, plan, limits, more=more)
        if frame is not None and not frame.tokens and plan.window:
            self.granted = before
            return None
        return frame

    patch.setattr(Branch, "due", drafts_only)


# ------------------------------------------------------------------ all of them


def fails(seed: int) -> bool:
    """Whether something goes wrong in this world; what is no error of the world's is raised."""
    random.seed(seed)
    try:
        run_virtual(World(seed).run(), timeout_s=TIMEOUT_S)
    except CAUGHT:
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("loosen", READINGS, ids=lambda loosen: loosen.__name__)
def test_random_worlds_catch_a_looser_reading(
    loosen: Loosen, monkeypatch: pytest.MonkeyPatch
) -> None:
    loosen(monkeypatch)
    assert any(fails(seed) for seed in range(WORLDS))
    assert not all(fails(seed) for seed in range(40))  # it is looser, not plainly broken
