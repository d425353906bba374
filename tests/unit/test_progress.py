"""Whatever takes long says so."""

from __future__ import annotations

import contextlib
import queue
import threading

import pytest

from cloud_verifier.progress import megabytes, step


def test_a_step_is_told_when_it_begins_and_again_while_it_lasts() -> None:
    said: queue.Queue[str] = queue.Queue()
    with step(said.put, "hashing", every_s=0.001):
        assert said.get_nowait() == "hashing"
        assert said.get(timeout=10).startswith("hashing: 0 s so far")


def test_how_far_it_has_come_is_told_where_it_is_known() -> None:
    said: queue.Queue[str] = queue.Queue()
    with step(said.put, "writing", reached=lambda: "25 %", every_s=0.001):
        said.get(timeout=10)
        assert said.get(timeout=10) == "writing: 25 %, 0 s so far"


def test_a_step_that_failed_is_told_no_more() -> None:
    said: queue.Queue[str] = queue.Queue()
    with contextlib.suppress(KeyError), step(said.put, "hashing", every_s=0.001):
        said.get(timeout=10)
        said.get(timeout=10)
        raise KeyError
    assert "draftwire-progress" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize(
    ("size", "words"), [(0, "0.0 MB"), (93_400_000, "93.4 MB"), (1.6e10, "16.0 GB")]
)
def test_sizes_are_told_in_units_that_suit_them(size: float, words: str) -> None:
    assert megabytes(size) == words
