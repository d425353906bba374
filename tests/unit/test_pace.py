"""How fast things are taken, on a clock of its own."""

from __future__ import annotations

import asyncio

import pytest

from cloud_verifier import pace as pace_module
from cloud_verifier.pace import Pace, PeerPace
from draftwire.testing.clock import run_virtual


def passing_at(pace: Pace, now: float) -> int:
    """How many pass at that time."""
    count = 0
    while pace.wait_s(now) == 0:
        pace.take()
        count += 1
    return count


def test_some_pass_at_once_and_then_a_few_each_second() -> None:
    pace = Pace(4, 2.0, 0.0)
    assert passing_at(pace, 0.0) == 4
    assert pace.wait_s(0.0) == 0.5
    assert passing_at(pace, 0.5) == 1
    assert passing_at(pace, 2.0) == 3


def test_more_may_be_allowed() -> None:
    pace = Pace(4, 2.0, 0.0)
    assert passing_at(pace, 0.0) == 4
    pace.allow(3)
    assert passing_at(pace, 0.0) == 3


def test_what_is_saved_up_has_a_bound() -> None:
    pace = Pace(4, 2.0, 0.0)
    pace.allow(3)
    assert passing_at(pace, 1e6) == 4


def test_a_hasty_peer_waits_and_no_other_does() -> None:
    async def calls() -> list[float]:
        clock = asyncio.get_running_loop().time
        peers = PeerPace(2, 10.0, clock)

        async def call(peer: str) -> float:
            await peers.turn(peer)
            return clock()

        return await asyncio.gather(*(call(peer) for peer in "aaaaab"))

    assert run_virtual(calls()) == pytest.approx([0.0, 0.0, 0.1, 0.2, 0.3, 0.0])


def test_peers_of_long_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace_module, "MOST_PEERS", 2)

    async def calls() -> float:
        clock = asyncio.get_running_loop().time
        peers = PeerPace(1, 10.0, clock)
        for peer in "abca":  # the last would wait, had it not been forgotten
            await peers.turn(peer)
        return clock()

    assert run_virtual(calls()) == 0.0
