"""An engine in this process and scripted devices that drive it: `Engine.step`, no wire."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from bench._scripts import Script
from cloud_verifier.engine import Arrival, Engine, EngineConfig
from cloud_verifier.sessions import Stream
from cloud_verifier.tally import Tally
from cloud_verifier.target import Judgement, Row, TargetModel
from draftwire.errors import DraftwireError
from draftwire.grammar import GrammarCompiler
from draftwire.types import (
    Draft,
    Finished,
    History,
    ModelCard,
    Open,
    ServerFrame,
    StopRules,
    Verdict,
    history_hash,
)


class TimedTarget:
    """Part of a target's KV under an engine of its own; remembers the last pass.

    `seconds` is what it took, `rows` what it fed; `fed` counts committed tokens fed by all passes.
    """

    def __init__(self, inner: TargetModel, num_blocks: int) -> None:
        self._inner = inner
        self._num_blocks = num_blocks
        self.seconds = 0.0
        self.rows: Sequence[Row] = ()
        self.passes = self.fed = 0

    @property
    def card(self) -> ModelCard:
        """The target's."""
        return self._inner.card

    @property
    def block_size(self) -> int:
        """The target's."""
        return self._inner.block_size

    @property
    def num_blocks(self) -> int:
        """KV blocks that this engine has."""
        return self._num_blocks

    def piece(self, token: int) -> bytes:
        """The target's."""
        return self._inner.piece(token)

    @property
    def grammars(self) -> GrammarCompiler | None:
        """The target's."""
        return self._inner.grammars

    def verify(self, rows: Sequence[Row]) -> list[Judgement | None]:
        """One pass of the target, timed."""
        started = time.perf_counter()
        judgements = self._inner.verify(rows)
        self.seconds = time.perf_counter() - started
        self.rows = rows
        self.passes += 1
        self.fed += sum(len(row.tokens) - row.drafts for row in rows)
        return judgements

    def close(self) -> None:
        """The target is not ours to close."""


class Device:
    """Drafts `k` tokens of its script a round, or with 0 lets the cloud decode alone.

    `committed` tokens of the script have come; `rounds` are (drafts sent, accepted) of each
    verdict but the first, `sent` the drafts that are out, `due_at` when the next ones go.

    Raises `AssertionError` for a token that is not the script's.
    """

    def __init__(
        self, name: int, script: Script, k: int, wrong: Callable[[int], bool], credit: int
    ) -> None:
        self.script = script
        self.stream = Stream()
        self.committed = 0
        self.rounds: list[tuple[int, int]] = []
        self.due_at: float | None = 0.0
        self.done = False
        self._name, self._k, self._wrong, self._credit = name, k, wrong, credit
        self._epoch = 0
        self.sent: list[int] = []

    def opening(self, fingerprint: bytes) -> list[Open | Draft]:
        """Open, and ask for a first token, which waits for no draft."""
        start = len(self.script.prompt)
        history = History(tokens=self.script.prompt, prefix_length=0, prefix_hash=history_hash(()))
        stop = StopRules(max_tokens=len(self.script.text), ignore_eos=True)
        opening = Open(
            session_id=self._name.to_bytes(16),
            attempt=1,
            generation=1,
            start=start,
            history=history,
            vocabulary_fingerprint=fingerprint,
            stop=stop,
        )
        return [opening, Draft(base=start, epoch=0, credit=1)]

    def draft(self) -> Draft:
        """The next round's drafts."""
        self.due_at = None
        self.sent = self.script.draft(self.committed, self._k, self._wrong)
        base = len(self.script.prompt) + self.committed
        credit = 1 if self._k else self._credit
        return Draft(base=base, epoch=self._epoch, tokens=self.sent, credit=credit)

    def take(self, frame: ServerFrame | DraftwireError, due_at: float) -> None:
        """What the engine said; after a verdict the next draft is due at `due_at`."""
        match frame:
            case Verdict():
                news = [*self.sent[: frame.accepted], *frame.next]
                place, text = self.committed, self.script.text
                if tuple(news) != text[place : place + len(news)]:
                    raise AssertionError(f"session {self._name} left its text at token {place}")
                agrees = self.sent[: len(news)] == news[: len(self.sent)]
                # Where the pass had no room for all drafts, the rest is judged by the next.
                left = self.sent[len(news) :] if agrees else []
                if place:
                    self.rounds.append((len(self.sent) - len(left), frame.accepted))
                self.committed += len(news)
                self._epoch += not agrees
                full = self._k or not place or (self.committed - 1) % self._credit == 0
                if full and not left:
                    self.due_at = due_at
                self.sent = left
            case Finished():
                self.done, self.due_at = True, None
            case DraftwireError():
                raise frame


class Fleet:
    """Devices on an engine over `num_blocks` blocks of a target, all opened.

    A device drafts again as soon as it has its verdict, or after a seeded wait of `think_s`
    seconds at most, half of it at least.
    """

    def __init__(
        self,
        target: TargetModel,
        scripts: Sequence[Script],
        *,
        k: int,
        wrong: Callable[[int], bool],
        num_blocks: int | None = None,
        think_s: float = 0.0,
    ) -> None:
        self.target = TimedTarget(target, num_blocks or target.num_blocks)
        self.tally = Tally()
        self.engine = Engine(self.target, EngineConfig(), observer=self.tally)
        credit = target.card.limits.max_credit
        self.devices = [Device(i, s, k, wrong, credit) for i, s in enumerate(scripts)]
        self._of = {device.stream: device for device in self.devices}
        self._think_s, self._draw = think_s, random.Random(0)
        fingerprint, now = target.card.target.vocabulary_fingerprint, time.monotonic()
        self._arrivals = [
            Arrival(device.stream, frame, now)
            for device in self.devices
            for frame in device.opening(fingerprint)
        ]
        for device in self.devices:
            device.due_at = None

    def due(self) -> list[Arrival]:
        """The frames that are to reach the engine before its next step."""
        now = time.monotonic()
        arrivals, self._arrivals = self._arrivals, []
        for device in self.devices:
            if device.due_at is not None and device.due_at <= now:
                at = device.due_at
                arrivals.append(Arrival(device.stream, device.draft(), at))
        return arrivals

    def step(self, arrivals: Sequence[Arrival]) -> float:
        """One step of the engine; returns the seconds it took."""
        started = time.perf_counter()
        departures = self.engine.step(arrivals)
        took = time.perf_counter() - started
        for stream, frame in departures:
            wait_s = self._think_s * self._draw.uniform(0.5, 1.0)
            self._of[stream].take(frame, time.monotonic() + wait_s)
        return took

    def prefill(self) -> None:
        """Step until every device has its first token."""
        while not all(device.committed for device in self.devices):
            self.step(self._arrivals if self._arrivals else ())
            self._arrivals = []

    def finish(self) -> float:
        """Go on until every text is there; returns the seconds that took."""
        started = time.monotonic()
        while not all(device.done for device in self.devices):
            arrivals = self.due()
            if not arrivals and not self.engine.has_work:
                times = [device.due_at for device in self.devices] + [self.engine.next_wakeup]
                soonest = min(at for at in times if at is not None)
                time.sleep(max(0.0, soonest - time.monotonic()))
            self.step(arrivals)
        return time.monotonic() - started

    @property
    def committed(self) -> int:
        """Tokens of all texts so far."""
        return sum(device.committed for device in self.devices)

    @property
    def recomputed(self) -> int:
        """Committed tokens that passes computed once more, because their KV had been lost."""
        once = sum(len(d.script.prompt) + len(d.rounds) for d in self.devices)
        return self.target.fed - once
