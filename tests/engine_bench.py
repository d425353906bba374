"""An engine over the table target, on a clock of its own: what the tests of the engine share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cloud_verifier.engine import Arrival, Detached, Engine, EngineConfig
from cloud_verifier.observer import Observer
from cloud_verifier.sessions import Stream
from cloud_verifier.table_target import TableTarget
from cloud_verifier.target import Judgement, Row
from draftwire.errors import DraftwireError
from draftwire.testing.table import TableModel
from draftwire.types import (
    ClientFrame,
    Draft,
    Finished,
    FinishReason,
    History,
    Open,
    Opened,
    ServerFrame,
    ServingLimits,
    StopRules,
    Tokens,
    Verdict,
    VerifyMode,
    history_hash,
)

MODEL = TableModel(vocabulary_size=50, states=256, seed=3)
PROMPT = (5, 6, 7)


class Target(TableTarget):
    """Remembers its passes; breaks while told to. `took` hears how many tokens a pass fed."""

    def __init__(self, took: Callable[[int], None], **options: Any) -> None:
        super().__init__(MODEL, **options)
        self.passes: list[Sequence[Row]] = []
        self.broken = False
        self._took = took

    def verify(self, rows: Sequence[Row]) -> list[Judgement | None]:
        self.passes.append([replace(row, blocks=tuple(row.blocks)) for row in rows])
        self._took(sum(len(row.tokens) for row in rows))
        if self.broken:
            raise RuntimeError("out of memory")
        return super().verify(rows)


@dataclass
class Recorder(Observer):
    """Adds up what an engine says of itself."""

    passes: int = 0
    tokens: int = 0
    verdicts: int = 0
    drafted: int = 0
    accepted: int = 0
    own: int = 0
    delivered_tokens: int = 0
    stale_tokens: int = 0
    preemptions: int = 0
    queued_s: list[float] = field(default_factory=list)
    pass_s: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    later_s: list[float] = field(default_factory=list)
    opens: list[tuple[int, int, bool]] = field(default_factory=list)
    ends: list[FinishReason] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def passed(self, seconds: float, tokens: int, sessions: int) -> None:
        assert 1 <= sessions <= tokens
        self.passes += 1
        self.tokens += tokens
        self.pass_s.append(seconds)

    def judged(self, drafts: int, accepted: int, own: int, queue_s: float) -> None:
        assert accepted <= drafts
        self.verdicts += 1
        self.drafted += drafts
        self.accepted += accepted
        self.own += own
        self.queued_s.append(queue_s)

    def delivered(self, tokens: int, since_last_s: float, *, first: bool) -> None:
        assert tokens >= 1
        self.delivered_tokens += tokens
        (self.first_s if first else self.later_s).append(since_last_s)

    def stale(self, tokens: int) -> None:
        assert tokens >= 1
        self.stale_tokens += tokens

    def opened(
        self, prompt_tokens: int, cached_tokens: int, mode: VerifyMode, *, resumed: bool
    ) -> None:
        assert mode in VerifyMode
        self.opens.append((prompt_tokens, cached_tokens, resumed))

    def finished(self, reason: FinishReason) -> None:
        self.ends.append(reason)

    def refused(self, code: str) -> None:
        self.errors.append(code)

    def preempted(self) -> None:
        self.preemptions += 1


class Verifier:
    """An engine, its clock, the frames under way to it and those that came back.

    A pass takes `fixed_s` and `per_token_s` for each token it feeds.
    """

    def __init__(
        self,
        *,
        max_context: int = 100,
        max_rows: int = 6,
        max_credit: int = 60,
        num_blocks: int = 100,
        block_size: int = 4,
        fixed_s: float = 0.0,
        per_token_s: float = 0.0,
        **config: Any,
    ) -> None:
        limits = ServingLimits(
            max_context=max_context, max_rows=max_rows, max_pending=20, max_credit=max_credit
        )
        self.now = 0.0
        self.fixed_s, self.per_token_s = fixed_s, per_token_s
        self.target = Target(
            self._pass, limits=limits, num_blocks=num_blocks, block_size=block_size
        )
        self.recorder = Recorder()
        self.engine = Engine(
            self.target, EngineConfig(**config), lambda: self.now, observer=self.recorder
        )
        self.heard: dict[Stream, list[ServerFrame | DraftwireError]] = {}
        self._arrivals: list[Arrival] = []

    def _pass(self, tokens: int) -> None:
        self.now += self.fixed_s + self.per_token_s * tokens

    def send(self, stream: Stream, *frames: ClientFrame | Detached) -> None:
        self._arrivals += [Arrival(stream, frame, self.now) for frame in frames]

    def step(self) -> None:
        arrivals, self._arrivals = self._arrivals, []
        for stream, item in self.engine.step(arrivals):
            self.heard.setdefault(stream, []).append(item)

    def settle(self) -> None:
        """Step until there is nothing to do."""
        self.step()
        for _ in range(10_000):
            if not self.engine.has_work:
                break
            self.step()
        assert not self.engine.has_work  # nobody is left behind
        self.check_books()

    def begin(self, *frames: ClientFrame, owner: str = "") -> Stream:
        """A new stream with these frames, not yet applied."""
        stream = Stream(owner)
        self.send(stream, *frames)
        return stream

    def cached(self, stream: Stream) -> int:
        """Tokens of the history that were found in KV when the stream opened."""
        opened = self.heard[stream][0]
        assert isinstance(opened, Opened)
        return opened.cached

    def end(self, stream: Stream) -> Finished:
        end = self.heard[stream][-1]
        assert isinstance(end, Finished), end
        return end

    def verdicts(self, stream: Stream) -> list[Verdict]:
        return [item for item in self.heard.get(stream, ()) if isinstance(item, Verdict)]

    def text(self, stream: Stream, drafted: Tokens = ()) -> list[int]:
        """What the stream's verdicts commit, the first of them judging `drafted`."""
        text: list[int] = []
        for verdict in self.verdicts(stream):
            text += [*drafted[: verdict.accepted], *verdict.next]
            drafted = ()
        return text

    def last(self, stream: Stream) -> ServerFrame | DraftwireError:
        return self.heard[stream][-1]

    def refusal(self, *frames: ClientFrame, owner: str = "") -> DraftwireError:
        """What a stream of these frames is refused with."""
        stream = self.begin(*frames, owner=owner)
        self.settle()
        error = self.last(stream)
        assert isinstance(error, DraftwireError), error
        return error

    def check_books(self) -> None:
        """Every block is free, cached or held, and none is written by two."""
        engine, pool = self.engine, self.engine.pool
        for session in engine.idle.values():
            assert session.kv.blocks == []
        held = [block for session in engine.active.values() for block in session.kv.blocks]
        assert pool.held == len(set(held))
        for session in engine.active.values():
            assert session.kv.length < len(session.tokens)
            full = session.kv.length // pool.block_size
            writable = session.kv.blocks[full:]
            assert all(held.count(block) == 1 for block in writable)


def opening(name: int = 1, prompt: Tokens = PROMPT, *, prefix: int = 0, **changes: Any) -> Open:
    """An open of session `name`, the first `prefix` tokens by hash."""
    history = History(
        tokens=tuple(prompt[prefix:]),
        prefix_length=prefix,
        prefix_hash=history_hash(prompt[:prefix]),
    )
    values: dict[str, Any] = {
        "session_id": name.to_bytes(16),
        "attempt": 1,
        "generation": 1,
        "start": len(prompt),
        "vocabulary_fingerprint": TableTarget(MODEL).card.target.vocabulary_fingerprint,
    }
    return Open(history=history, **(values | changes))


def most(tokens: int) -> StopRules:
    return StopRules(max_tokens=tokens)


def go(prompt: Tokens = PROMPT, credit: int = 60) -> Draft:
    """An empty draft: the cloud decodes alone."""
    return Draft(base=len(prompt), epoch=0, credit=credit)
