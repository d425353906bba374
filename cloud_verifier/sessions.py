"""A generation as the verifier sees it: committed tokens, and the drafts that await judgement.

The rules and their numbers are those of docs/protocol.md. Nothing here blocks, draws random
numbers or touches a model: frames and judgements go in, frames come out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cloud_verifier.allowance import Allowance
from cloud_verifier.kv_cache import BlockTable
from cloud_verifier.target import Judgement
from draftwire.adjust import Adjuster
from draftwire.errors import (
    LimitExceeded,
    ProtocolViolation,
    SessionGone,
    Superseded,
    UnsupportedParameter,
)
from draftwire.grammar import Matcher
from draftwire.stopping import StopSearch
from draftwire.types import (
    CompactDistribution,
    Draft,
    Finished,
    FinishReason,
    Grammar,
    Hint,
    History,
    ModelCard,
    Open,
    Opened,
    SamplingParams,
    ServerFrame,
    StopRules,
    Timing,
    TokenLogprobs,
    Tokens,
    Usage,
    Verdict,
    VerifyMode,
    common_prefix,
    history_hash,
)

NO_EPOCH = -1
_NO_HINT = Hint()


@dataclass(slots=True, eq=False)
class Stream:
    """A client's stream as the engine knows it. `owner` names the key that opened it.

    `may_waste`: whether the key has wasted drafts left when it opens.
    """

    owner: str = ""
    may_waste: bool = True
    session: Session | None = None
    closed: bool = False


class Session:
    """One client's session. It outlives streams and generations.

    `tokens` are committed, prompt included; `pending` are drafts after them, not yet judged.
    Where a stop string ended the text they go on to its last token: the client, which truncates
    them, must have heard of that one to know what else is text.
    The verifier may go on alone up to `anchor + credit` (rule 14). `stream` is whoever opened
    it last, None when detached.
    """

    def __init__(
        self,
        session_id: bytes,
        owner: str,
        card: ModelCard,
        piece: Callable[[int], bytes] = lambda token: b"",  # noqa: ARG005
    ) -> None:
        self.id = session_id
        self.owner = owner
        self.card = card
        self.piece = piece  # a token's text, for stop strings
        self.kv = BlockTable(owner)
        self.tokens: list[int] = []
        self.attempt = 0
        self.generation = 0
        self.start = 0
        self.sampling = SamplingParams()
        self.mode = VerifyMode.MATCH
        self.stop = StopRules()
        self.grammar: Grammar | None = None
        self.logprobs = 0
        self.told: list[TokenLogprobs] = []  # of the tokens from `told_from` on, if asked for
        self.told_from = 0
        self.adjuster: Adjuster | None = None
        self.search: StopSearch | None = None
        self.end_tokens: frozenset[int] = frozenset()
        self.reach = 0
        self.finish: FinishReason | None = None
        self.passes = self.drafted = self.accepted = self.cached = 0
        self.begun_at = self.queued_at = self.waiting_since = 0.0  # seconds of the engine's clock
        self.served_at = self.told_at = 0.0
        self.wasted = 0  # drafts judged and not accepted, for whoever counts them to take
        self.dropped = 0  # drafts that the last verdict left without judgement
        self.allowance = Allowance(card.limits.max_rows - 1)
        self.stream: Stream | None = None
        self._forget_stream()

    def _forget_stream(self) -> None:
        self.stream = None
        self.pending: list[int] = []
        self.stated: list[CompactDistribution | None] = []  # what each pending draft came from
        self.credit = 0
        self.anchor = len(self.tokens)
        self.epoch = 0
        self.dead_epoch = NO_EPOCH
        self.frames = self.frames_told = 0  # drafts that came on this stream
        self.heard_at = 0.0
        self.hinted = _NO_HINT

    # ---------------------------------------------------------------- opening (rules 3–6)

    def resolve(self, opening: Open) -> list[int]:
        """The history that an open speaks of.

        Raises `Superseded` for an attempt already known and `SessionGone` for a prefix that
        is not this session's.
        """
        if opening.attempt <= self.attempt:
            raise Superseded(
                f"attempt {opening.attempt} is not above {self.attempt}, which owns the session",
                remedy="someone else opened this session later; start a session of your own",
            )
        return resolve_history(opening.history, self.tokens)

    def reach_of(self, opening: Open) -> int:
        """The longest the session's tokens can get in this generation."""
        return opening.stop.reach(opening.start, self.card.limits.max_context)

    def open(
        self, opening: Open, history: list[int], stream: Stream, grammar: Matcher | None = None
    ) -> bool:
        """Attach a stream; whether it goes on where the generation stands, or begins a new one.

        The session's KV must be empty: it is for what its tokens were. `grammar` is the opening's,
        at the beginning of the output.
        """
        resumed = self._continues(opening, history)
        if not resumed:
            self._begin(opening, history, grammar)
        self._forget_stream()
        self.stream = stream
        self.attempt = opening.attempt
        self.anchor = len(history)
        return resumed

    def greeting(self, known: int) -> list[ServerFrame]:
        """What a client that holds `known` tokens is told after its open (rules 5 and 6)."""
        frames: list[ServerFrame] = [
            Opened(
                target=self.card.target,
                limits=self.card.limits,
                length=len(self.tokens),
                cached=self.kv.length,
            )
        ]
        if missed := self.tokens[known:]:
            told = tuple(self.told[known - self.told_from :]) if self.logprobs else ()
            frames.append(Verdict(base=known, accepted=0, next=tuple(missed), logprobs=told))
        if self.finish is not None:
            frames.append(self._finished(self.finish))
        return frames

    def _continues(self, opening: Open, history: list[int]) -> bool:
        return (
            (opening.generation, opening.start) == (self.generation, self.start)
            and (opening.sampling, opening.stop, opening.mode)
            == (self.sampling, self.stop, self.mode)
            and (opening.logprobs, opening.grammar) == (self.logprobs, self.grammar)
            # Log-probabilities of tokens that came with a history are not known here.
            and (not self.logprobs or len(history) >= self.told_from)
            and self.tokens[: len(history)] == history
        )

    def _begin(self, opening: Open, history: list[int], grammar: Matcher | None) -> None:
        self.generation, self.start = opening.generation, opening.start
        self.sampling, self.stop, self.mode = opening.sampling, opening.stop, opening.mode
        self.grammar = opening.grammar
        self.end_tokens = self.stop.ends(self.card.target.eos_token_ids)
        self.reach = self.reach_of(opening)
        rules = self.stop
        self.search = StopSearch(rules.strings, rules.min_tokens) if rules.strings else None
        self.passes = self.drafted = self.accepted = 0
        self.adjuster = Adjuster.of(
            self.sampling,
            self.stop,
            start=self.start,
            eos_token_ids=self.card.target.eos_token_ids,
            grammar=grammar,
        )
        kept, self.finish = self._stop_within(opening.start, history[opening.start :])
        self.tokens = history[: opening.start + kept]
        self.logprobs, self.told, self.told_from = opening.logprobs, [], len(self.tokens)
        if self.adjuster is not None:
            self.adjuster.extend(self.tokens)

    # ---------------------------------------------------------------- frames (rules 12–13, 23)

    def draft(self, frame: Draft) -> int:
        """Take a draft in; returns how many of its tokens were stale.

        Raises `ProtocolViolation` for a base out of place and `LimitExceeded`.
        """
        if frame.q and self.mode is not VerifyMode.REJECTION:
            raise UnsupportedParameter(
                "draft distributions belong to rejection mode", remedy="leave q out"
            )
        if self.finish is not None or frame.epoch <= self.dead_epoch:
            return len(frame.tokens)
        if frame.epoch < self.epoch:
            raise ProtocolViolation(f"epoch went back from {self.epoch} to {frame.epoch}")
        if frame.epoch > self.epoch:
            self.epoch = frame.epoch
            self._drop_pending()
        length = len(self.tokens)
        tip = length + len(self.pending)
        if frame.base != tip and (frame.base > tip or self.pending or frame.base < self.start):
            raise ProtocolViolation(
                f"draft at {frame.base}, but the session stands at {length} "
                f"with {len(self.pending)} pending and began at {self.start}"
            )
        overlap = max(0, min(length, frame.end) - frame.base)
        if tuple(self.tokens[frame.base : frame.base + overlap]) != tuple(frame.tokens[:overlap]):
            self.dead_epoch = frame.epoch
            self._drop_pending()
            return len(frame.tokens)
        self._check_limits(len(self.pending) + len(frame.tokens) - overlap, frame.credit)
        self.pending.extend(frame.tokens[overlap:])
        self.stated.extend((frame.q or (None,) * len(frame.tokens))[overlap:])
        self.credit, self.anchor = frame.credit, frame.end
        return overlap

    def _check_limits(self, pending: int, credit: int) -> None:
        limits = self.card.limits
        for what, asked, most in (
            ("pending drafts", pending, limits.max_pending),
            ("credit", credit, limits.max_credit),
        ):
            if asked > most:
                raise LimitExceeded(
                    f"{asked} tokens of {what}, but {most} are allowed",
                    remedy="stay within the limits stated in `opened`",
                )

    def cancel(self) -> list[ServerFrame]:
        """End the generation on the client's word."""
        if self.finish is not None:
            return []
        return [self._finish(FinishReason.CANCELLED)]

    def detach(self) -> None:
        """The stream is gone: keep what is committed, start no pass."""
        self._forget_stream()

    # ---------------------------------------------------------------- passes (rules 14–20)

    @property
    def ready(self) -> bool:
        """Whether a pass has something to do here."""
        return (
            self.stream is not None
            and self.finish is None
            and (bool(self.pending) or len(self.tokens) < self.anchor + self.credit)
        )

    @property
    def owed(self) -> int:
        """Committed tokens that are not in KV yet: at least the last (rule 20)."""
        return len(self.tokens) - self.kv.length

    @property
    def in_prompt(self) -> bool:
        """Whether it owes more than a round does: a prompt, or what it lost to others."""
        return self.owed > self.card.limits.max_rows

    @property
    def room(self) -> int:
        """Tokens that may still be committed, ≥ 1 while unfinished."""
        return self.reach - len(self.tokens)

    def commit(
        self, judged: int, judgement: Judgement, timing: Timing, hint: Hint = _NO_HINT
    ) -> list[ServerFrame]:
        """Take in the judgement of the first `judged` pending drafts (0: a token of its own).

        The verdict passes on the `hint` unless this stream was told the same before. Raises
        `LimitExceeded` if the grammar can't be followed any further.
        """
        base, waiting, held = len(self.tokens), len(self.pending), 0
        drafts = self.pending[:judged]
        out = drafts[: judgement.accepted]
        if len(out) < judged or not judged or (self.credit >= 1 and self._bonus_counts(judged)):
            out.append(judgement.token)
        kept, reason = self._stop_within(base, out)
        del out[kept:]
        accepted = common_prefix(out, drafts)  # equality decides, not what drew it (rule 17)

        self.tokens.extend(out)
        told = tuple(judgement.logprobs[: len(out)])
        self.told.extend(told)
        if self.adjuster is not None:
            self.adjuster.extend(out)
            if self.adjuster.grammar is not None:
                self.adjuster.grammar.check()
        self.kv.length = min(base + accepted, len(self.tokens) - 1)
        self.passes += 1
        self.drafted += judged
        self.accepted += accepted
        self.wasted += judged - accepted
        if self.pending:
            held = self._reconcile(out, accepted)
            self.allowance.learn(held)
        frames: list[ServerFrame] = [
            Verdict(
                base=base,
                accepted=accepted,
                next=tuple(out[accepted:]),
                timing=timing,
                hint=hint if hint != self.hinted else None,
                logprobs=told,
            )
        ]
        self.hinted = hint
        if reason is not None:
            frames.append(self._finish(reason))
        self.dropped = waiting - len(self.pending) - max(judged, held)
        return frames

    def _bonus_counts(self, judged: int) -> bool:
        """Whether a bonus token may follow (rule 16).

        In `rejection` mode not where more drafts wait: compared with one, a token from p equals it
        less often than one drawn for it would be accepted.
        """
        return self.mode is not VerifyMode.REJECTION or judged == len(self.pending)

    def _reconcile(self, out: Tokens, accepted: int) -> int:
        """Hold pending against what was committed (rules 13 and 16); returns how many held."""
        common = common_prefix(self.pending, out)
        if common < min(len(self.pending), len(out)):
            self.dead_epoch = self.epoch
            self._drop_pending()
            self.anchor = len(self.tokens) - len(out) + accepted
        else:
            del self.pending[:common], self.stated[:common]
        return common

    def _drop_pending(self) -> None:
        self.pending.clear()
        self.stated.clear()

    def _stop_within(self, base: int, out: Tokens) -> tuple[int, FinishReason | None]:
        """How many tokens of `out`, which follows position `base`, stay; and why it ends there."""
        ends_from = self.start + self.stop.min_tokens
        grammar = None if self.adjuster is None else self.adjuster.grammar
        complete = None if grammar is None else grammar.completed_by(out)
        for count, token in enumerate(out, start=1):
            if token in self.end_tokens and base + count > ends_from:
                return count, FinishReason.STOP
            if self.search is not None and self.search.feed(self.piece(token)):
                return count, FinishReason.STOP
            if count == complete:
                return count, FinishReason.STOP
            if base + count >= self.reach:
                return count, FinishReason.LENGTH
        return len(out), None

    def _finish(self, reason: FinishReason) -> Finished:
        self.finish = reason
        self._drop_pending()
        return self._finished(reason)

    def _finished(self, reason: FinishReason) -> Finished:
        length = len(self.tokens)
        if self.search is not None and self.search.found is not None:
            length = self.start + self.search.decided  # rule 22
        usage = Usage(
            prompt_tokens=self.start,
            completion_tokens=length - self.start,
            passes=self.passes,
            drafted=self.drafted,
            accepted=self.accepted,
            cached_tokens=self.cached,
        )
        return Finished(reason=reason, length=length, usage=usage)


def resolve_history(history: History, tokens: Tokens) -> list[int]:
    """The tokens a history stands for, given those held. Raises `SessionGone` if they differ."""
    prefix = list(tokens[: history.prefix_length])
    if len(prefix) < history.prefix_length or history_hash(prefix) != history.prefix_hash:
        raise SessionGone(
            f"the verifier does not hold these {history.prefix_length} tokens of the session",
            remedy="open again with the whole history",
        )
    return prefix + list(history.tokens)
