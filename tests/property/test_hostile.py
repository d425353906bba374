"""Whatever comes over the wire: an error with a code, and the others' tokens as they were."""

from __future__ import annotations

import gc
import random

import pytest
from hostile_world import HostileWorld
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwire.codec import pack_client, unpack_client
from draftwire.errors import DraftwireError
from draftwire.types import FinishReason
from draftwire.v1 import verifier_pb2 as pb


@settings(max_examples=60)
@given(st.binary(max_size=200))
def test_bytes_are_a_frame_or_an_error_of_ours(data: bytes) -> None:
    try:
        frame = unpack_client(data)
    except DraftwireError:
        return
    assert unpack_client(pack_client(frame)) == frame


@settings(max_examples=15)
@given(st.randoms(use_true_random=False))
def test_hostile_frames_in_any_order_leave_others_their_text(draw: random.Random) -> None:
    world = HostileWorld(text=20)
    for _ in range(30):
        for _ in range(draw.randrange(4)):
            world.attack(draw)
        world.step()
        world.check()
    world.finish()


@pytest.mark.slow
def test_the_hostile_inputs_reach_far() -> None:
    """What is drawn is refused for many reasons, and is not refused too."""
    draw = random.Random(1)
    world = HostileWorld(text=80)
    for _ in range(2000):
        for _ in range(draw.randrange(5)):
            world.attack(draw)
        world.step()
    world.finish()
    assert set(world.codes) >= {
        *("INVALID_REQUEST", "UNSUPPORTED_PARAMETER", "PROMPT_TOO_LONG", "VOCABULARY_MISMATCH"),
        *("MODEL_NOT_FOUND", "PERMISSION_DENIED", "PROTOCOL_VIOLATION", "PROTOCOL_VERSION"),
        *("LIMIT_EXCEEDED", "SESSION_GONE", "SUPERSEDED", "MODEL_CHANGED"),
    }
    ends = world.verifier.recorder.ends
    assert len(ends) - ends.count(FinishReason.CANCELLED) > world.texts  # theirs, too


@pytest.mark.slow
def test_a_hundred_thousand_hostile_inputs() -> None:
    draw = random.Random(7)
    inputs, steady = 0, 0
    while inputs < 100_000:
        world = HostileWorld(text=90)
        for _ in range(2500):
            for _ in range(draw.randrange(5)):
                world.attack(draw)
            world.step()
            world.check()
        world.finish()
        inputs += world.inputs
        del world
        gc.collect()
        alive = len(gc.get_objects())
        steady = steady or alive  # after the first world all that is made once has been made
        assert alive < steady + 1000


# ------------------------------------------------------------------ inputs by name


def _open(**changes: object) -> bytes:
    frame = pb.ClientFrame(
        open=pb.Open(
            protocol_version=1,
            session_id=bytes(16),
            attempt=1,
            generation=1,
            start=1,
            history=pb.History(tokens=[1]),
            verify_mode=pb.VERIFY_MODE_MATCH,
        )
    )
    for name, value in changes.items():
        getattr(frame.open, name).MergeFrom(value) if hasattr(value, "MergeFrom") else setattr(
            frame.open, name, value
        )
    return frame.SerializeToString()


NEGATIVE = b"\xff" * 9 + b"\x01"  # −1 as a varint
CORPUS: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "PROTOCOL_VIOLATION"),
    "an unknown kind": (b"\x7a\x00", "PROTOCOL_VIOLATION"),
    "cut off": (_open()[:-3], "PROTOCOL_VIOLATION"),
    "a length beyond its end": (b"\x12\xff\xff\xff\xff\x0f", "PROTOCOL_VIOLATION"),
    "a group that never ends": (b"\x13" * 200, "PROTOCOL_VIOLATION"),
    "text that is not UTF-8": (b"\x0a\x04\x12\x02\xff\xfe", "PROTOCOL_VIOLATION"),
    "a negative token": (b"\x12\x0c\x1a\x0a" + NEGATIVE, "INVALID_REQUEST"),
    "no session id": (_open(session_id=b""), "INVALID_REQUEST"),
    "a long session id": (_open(session_id=bytes(17)), "INVALID_REQUEST"),
    "attempt 0": (_open(attempt=0), "INVALID_REQUEST"),
    "a start beyond the history": (_open(start=2), "INVALID_REQUEST"),
    "no prompt": (_open(start=0), "INVALID_REQUEST"),
    "a prefix without its hash": (_open(history=pb.History(prefix_length=9)), "INVALID_REQUEST"),
    "an unknown mode": (_open(verify_mode=77), "UNSUPPORTED_PARAMETER"),
    "temperature NaN": (
        _open(sampling=pb.SamplingParams(temperature=float("nan"))),
        "INVALID_REQUEST",
    ),
    "top_p negative": (_open(sampling=pb.SamplingParams(top_p=-0.5)), "INVALID_REQUEST"),
    "infinite bias": (
        _open(sampling=pb.SamplingParams(logit_bias={1: float("inf")})),
        "INVALID_REQUEST",
    ),
    "a distribution without weight": (
        pb.ClientFrame(
            draft=pb.Draft(q=[pb.CompactDistribution(tokens=[1], weights=b"\0")])
        ).SerializeToString(),
        "INVALID_REQUEST",
    ),
}


@pytest.mark.parametrize(("data", "code"), CORPUS.values(), ids=CORPUS)
def test_each_malformed_frame_has_its_code(data: bytes, code: str) -> None:
    with pytest.raises(DraftwireError) as caught:
        unpack_client(data)
    assert caught.value.code == code
