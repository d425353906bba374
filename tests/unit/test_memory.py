"""Who gives up its KV blocks when they run short."""

from __future__ import annotations

from waiting_sessions import waiting

from cloud_verifier.memory import victim
from cloud_verifier.scheduler import Share
from cloud_verifier.sessions import Session


def holding(since: float, *, ready: bool = True, blocks: int = 1, owner: str = "") -> Session:
    session = waiting(since, owner=owner)
    session.id = str(since).encode()
    session.kv.blocks = list(range(blocks))
    session.credit = int(ready)
    return session


def test_whose_device_is_asleep_gives_up_its_blocks_first_the_longest_waiting_of_them() -> None:
    active = [holding(5), holding(3, ready=False), holding(1, ready=False), holding(2)]
    assert victim(active[0], active, [], asleep_since=3) is active[2]
    assert victim(active[3], active, [], asleep_since=3) is active[2]  # even of the older ones


def test_who_waits_for_a_round_trip_keeps_its_blocks_from_those_who_came_later() -> None:
    active = [holding(5), holding(3, ready=False), holding(4)]
    assert victim(active[2], active, [], asleep_since=2) is None
    assert victim(active[0], active, [], asleep_since=2) is active[2]
    assert victim(active[0], active[:2], [], asleep_since=2) is active[1]


def test_everyones_first_session_comes_before_anyones_second() -> None:
    active = [holding(at, owner="many") for at in range(3)]
    active.append(holding(3, owner="one"))
    assert victim(active[3], active, []) is active[2]
    active[2].kv.blocks.clear()
    assert victim(active[3], active, []) is active[1]
    assert victim(active[0], active, []) is active[1]
    active[1].kv.blocks.clear()
    assert victim(active[3], active, []) is None
    assert victim(active[1], active, []) is None


def test_of_the_ready_the_last_admitted_gives_way_and_never_to_a_later_one() -> None:
    active = [holding(at) for at in range(4)]
    assert victim(active[0], active, []) is active[3]
    assert victim(active[2], active, []) is active[3]
    assert victim(active[3], active, []) is None


def test_who_has_a_share_of_the_pass_or_nothing_to_give_is_spared() -> None:
    active = [holding(0), holding(1), holding(2), holding(3, blocks=0)]
    granted = [Share(active[2], owed=1, drafts=0, judge=True, prompt=False)]
    assert victim(active[0], active, granted) is active[1]
    active[1].kv.blocks.clear()
    assert victim(active[0], active, granted) is None
