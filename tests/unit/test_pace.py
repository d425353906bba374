"""How many frames a stream may send, on a clock of its own."""

from __future__ import annotations

from cloud_verifier.pace import Pace, StreamBounds

BOUNDS = StreamBounds(frames_at_once=4, frames_per_s=2.0, frames_per_verdict=3)


def sent_at(pace: Pace, now: float) -> int:
    """How many frames may be sent at that time."""
    count = 0
    while pace.wait_s(now) == 0:
        pace.take()
        count += 1
    return count


def test_some_frames_may_come_at_once_and_then_a_few_each_second() -> None:
    pace = Pace(BOUNDS, 0.0)
    assert sent_at(pace, 0.0) == 4
    assert pace.wait_s(0.0) == 0.5
    assert sent_at(pace, 0.5) == 1
    assert sent_at(pace, 2.0) == 3


def test_a_verdict_allows_more() -> None:
    pace = Pace(BOUNDS, 0.0)
    assert sent_at(pace, 0.0) == 4
    pace.verdict()
    assert sent_at(pace, 0.0) == 3


def test_what_is_saved_up_has_a_bound() -> None:
    pace = Pace(BOUNDS, 0.0)
    pace.verdict()
    assert sent_at(pace, 1e6) == 4
