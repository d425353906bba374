"""A verifier among devices that send whatever they like, as bytes, and two that behave."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any, TypeAlias

from engine_bench import MODEL, PROMPT, Verifier, most, opening

from cloud_verifier.engine import Detached
from cloud_verifier.sessions import Stream
from draftwire.codec import pack_client, unpack_client
from draftwire.errors import BY_CODE, DraftwireError, InternalError
from draftwire.types import Draft, Finished, Verdict
from draftwire.v1 import verifier_pb2 as pb

Draw: TypeAlias = random.Random

COUNTS = [0, 1, 2, 3, 4, 5, 19, 20, 21, 49, 50, 60, 99, 100, 2**31 - 1, 2**31, 2**32 - 1]
NUMBERS = [0.0, -0.0, 1.0, 0.5, -1.0, 1e-320, 1e308, 101.0, math.inf, -math.inf, math.nan]
DIGESTS = [b"", bytes(16), b"\xff" * 16, bytes(32), b"short"]
STREAMS = 4
MODELS_OWN = opening(1).vocabulary_fingerprint
SESSIONS = [name.to_bytes(16) for name in (1, 2, 3, 4, 101)]  # 101 is a victim's


# ------------------------------------------------------------------ what they send


def hostile(draw: Draw, attempt: int, *, opened: bool) -> bytes:
    """Bytes that may or may not be a frame, for a stream that has opened or has not.

    Most opens state `attempt`, since none below the session's last gets anywhere.
    """
    kind = draw.randrange(12)
    if kind == 0:
        return draw.randbytes(draw.randrange(40))
    if kind == 1:
        frame = pb.ClientFrame(cancel=pb.Cancel())
    elif opened == (kind < 11):
        frame = _draft(draw)
    else:
        frame = _open(draw, attempt)
    data = frame.SerializeToString()
    return _mutated(draw, data) if draw.randrange(10) == 0 else data


def _mutated(draw: Draw, data: bytes) -> bytes:
    changed = bytearray(data or b"\0")
    for _ in range(draw.randrange(1, 4)):
        at = draw.randrange(len(changed))
        match draw.randrange(4):
            case 0:
                changed[at] ^= 1 << draw.randrange(8)
            case 1:
                del changed[at:]
                changed += b"\0"
            case 2:
                changed[at:at] = draw.randbytes(draw.randrange(1, 5))
            case _:
                changed += changed[at:]
    return bytes(changed)


def _draft(draw: Draw) -> pb.ClientFrame:
    """Overlapping, out of place, too long or quite in order."""
    frame = pb.ClientFrame()
    draft = frame.draft
    draft.base = draw.choice([3] * 12 + [*range(4, 9), *COUNTS])
    draft.epoch = draw.choice([0] * 12 + [1, 1, 2, *COUNTS])
    draft.credit = draw.choice([0, 1, 1, 3, 61, *COUNTS])
    draft.tokens.extend(_tokens(draw, draw.choice([0, 1, 2, 4, 21])))
    if draw.randrange(12) == 0:
        draft.parents.extend(_tokens(draw, 2))
    if draw.randrange(12) == 0:
        draft.q.add(tokens=_tokens(draw, 2), weights=draw.randbytes(draw.randrange(4)))
    return frame


MODES = [pb.VERIFY_MODE_MATCH, pb.VERIFY_MODE_REJECTION, pb.VERIFY_MODE_TYPICAL]


def _open(draw: Draw, attempt: int) -> pb.ClientFrame:
    """One that would be accepted, with up to four things wrong with it."""
    frame = pb.ClientFrame()
    opened = frame.open
    opened.protocol_version = 1
    opened.session_id = draw.choice(SESSIONS)
    opened.attempt = attempt
    opened.generation = draw.randrange(1, 3)
    opened.start = len(PROMPT)
    opened.vocabulary_fingerprint = MODELS_OWN
    opened.verify_mode = draw.choice(MODES)
    opened.history.tokens.extend(PROMPT)
    wrongs: list[Callable[[Draw, pb.Open], None]] = [*_WRONGS]
    for _ in range(draw.choice([0, 0, 1, 1, 2, 4])):
        draw.choice(wrongs)(draw, opened)
    return frame


def _set(name: str, values: list[Any]) -> Callable[[Draw, pb.Open], None]:
    path = name.split(".")

    def change(draw: Draw, opened: pb.Open) -> None:
        owner: Any = opened
        for part in path[:-1]:
            owner = getattr(owner, part)
        setattr(owner, path[-1], draw.choice(values))

    return change


def _other_history(draw: Draw, opened: pb.Open) -> None:
    del opened.history.tokens[:]
    opened.history.tokens.extend(_tokens(draw, draw.choice([0, 1, 3, 7, 101])))
    opened.start = draw.choice([1, 3, len(opened.history.tokens)])


def _unknown_prefix(draw: Draw, opened: pb.Open) -> None:
    opened.history.prefix_length = draw.choice([1, 3, 10, 2**32 - 1])
    opened.history.prefix_hash = draw.randbytes(16)


_WRONGS: list[Callable[[Draw, pb.Open], None]] = [
    *(_set(name, COUNTS) for name in ("protocol_version", "attempt", "generation", "start")),
    *(_set(name, DIGESTS) for name in ("session_id", "vocabulary_fingerprint", "expected_target")),
    _set("history.prefix_length", COUNTS),
    _set("history.prefix_hash", DIGESTS),
    _set("model", ["", "table", "no such model", "\0", "é" * 200]),
    _set("verify_mode", [0, 9]),
    _set("logprobs", [*COUNTS, 1, 21]),
    _set("sampling.temperature", [0.5, 1.0]),
    _set("sampling.frequency_penalty", [0.5, -2.0, 2.1]),
    _set("sampling.repetition_penalty", [0.01, 1.5, 100.0]),
    *(_set(f"limits.{name}", COUNTS) for name in ("max_tokens", "min_tokens")),
    *(
        _set(f"sampling.{name}", NUMBERS)
        for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty")
    ),
    _set("sampling.top_k", COUNTS),
    _set("grammar.regex", ["", "(", "(a+)+b"]),
    lambda draw, opened: opened.stop.token_ids.extend(_tokens(draw, 3)),
    lambda draw, opened: opened.stop.strings.append(draw.choice(["", "x", " the", "e"])),
    lambda _, opened: opened.required_features.append("telepathy"),
    lambda draw, opened: opened.sampling.logit_bias.update(
        {draw.choice(COUNTS): draw.choice(NUMBERS)}
    ),
    _other_history,
    _unknown_prefix,
]


def _tokens(draw: Draw, count: int) -> list[int]:
    """Mostly of the vocabulary of 50."""
    if draw.randrange(6) == 0:
        return [draw.choice(COUNTS) for _ in range(count)]
    return [draw.randrange(50) for _ in range(count)]


# ------------------------------------------------------------------ where they send it


class Victim:
    """A device that drafts three tokens a round, of which some hold."""

    def __init__(self, verifier: Verifier, name: int, count: int) -> None:
        self.tokens = [*PROMPT]
        self.finished = False
        self._verifier = verifier
        self._epoch = 0
        self._heard = 0
        self._truth = MODEL.generate(PROMPT, count + 4)
        self._stream = verifier.begin(opening(name, stop=most(count)), owner="victim")
        self._send()

    def _send(self) -> None:
        at = len(self.tokens) - len(PROMPT)
        guess = self._truth[at : at + 3]
        if at % 3 == 0 and guess:
            guess[-1] = (guess[-1] + 1) % 50
        self._sent = tuple(guess)
        draft = Draft(base=len(self.tokens), epoch=self._epoch, tokens=self._sent, credit=1)
        self._verifier.send(self._stream, draft)

    def hear(self) -> None:
        """Take in what came, and answer."""
        items = self._verifier.heard.get(self._stream, [])
        for item in items[self._heard :]:
            if isinstance(item, Verdict):
                assert item.base == len(self.tokens)
                self.tokens += [*self._sent[: item.accepted], *item.next]
                self._epoch += item.accepted < len(self._sent)
                self._send()
            elif isinstance(item, Finished):
                self.finished = True
            else:
                assert not isinstance(item, DraftwireError), item
        self._heard = len(items)


class HostileWorld:
    """Hostile bytes go in through `attack`; `check` says what must hold whatever they were."""

    def __init__(self, text: int) -> None:
        self.verifier = Verifier(num_blocks=120, max_sessions=8, max_retained=16)
        self.verifier.fixed_s = 0.01
        self.victims = [Victim(self.verifier, name, text) for name in (101, 102)]
        self.texts = 0
        self.codes: dict[str, int] = {}
        self.streams = [Stream("hostile") for _ in range(STREAMS)]
        self.text = text
        self.inputs = 0
        self.opened: set[Stream] = set()  # streams on which something was sent

    def attack(self, draw: Draw) -> None:
        """One hostile input on one of the streams; a stream that has ended is begun anew."""
        at = draw.randrange(STREAMS)
        if self.streams[at].closed:
            self.opened.discard(self.streams[at])
            self.streams[at] = Stream("hostile")
        if draw.randrange(20) == 0:
            self.verifier.send(self.streams[at], Detached())
            return
        self.inputs += 1
        stream = self.streams[at]
        data = hostile(draw, self.inputs, opened=stream in self.opened)
        self.opened.add(stream)
        try:
            frame = unpack_client(data)
        except DraftwireError as error:  # and so the service ends the stream
            self._count(error)
            self.verifier.send(self.streams[at], Detached())
        else:
            assert unpack_client(pack_client(frame)) == frame
            self.verifier.send(self.streams[at], frame)

    def step(self) -> None:
        """A pass, and the victims' answers to it; one whose text is whole begins another."""
        self.verifier.step()
        for at, victim in enumerate(self.victims):
            victim.hear()
            if victim.finished:
                assert victim.tokens == [*PROMPT, *MODEL.generate(PROMPT, self.text)]
                self.texts += 1
                self.victims[at] = Victim(self.verifier, 101 + at + 2 * self.texts, self.text)
        for stream, items in list(self.verifier.heard.items()):
            if stream.owner == "hostile":
                del self.verifier.heard[stream]
                for item in items:
                    if isinstance(item, DraftwireError):
                        self._count(item)

    def _count(self, error: DraftwireError) -> None:
        assert not isinstance(error, InternalError), error
        assert BY_CODE[error.code]
        self.codes[error.code] = self.codes.get(error.code, 0) + 1

    def check(self) -> None:
        """The verifier's bounds, and what it is made of."""
        engine = self.verifier.engine
        limits = engine.card.limits
        assert len(engine.active) <= engine.config.max_sessions
        # Those that a pass has just finished are counted at the next step.
        assert len(engine.idle) <= engine.config.max_retained + engine.config.max_sessions
        for session in (*engine.active.values(), *engine.idle.values()):
            assert len(session.pending) <= limits.max_pending
            assert session.credit <= limits.max_credit
            assert len(session.tokens) <= limits.max_context
        self.verifier.target.passes.clear()
        self.verifier.check_books()

    def finish(self) -> None:
        """Both victims get their text, within the passes it takes and a few more."""
        texts = self.texts
        for _ in range(3 * self.text):
            self.step()
        assert self.texts >= texts + 2
        self.check()
