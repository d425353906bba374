"""KV blocks: promised before they are used, never owned twice, taken back from who waits."""

from __future__ import annotations

import contextlib
import random

import pytest

from cloud_verifier.kv_cache import BlockPool, BlockTable
from draftwire.errors import InternalError, ServerFull


def held(pool: BlockPool, tokens: int) -> BlockTable:
    """A table that has grown to `tokens` positions, all of them promised."""
    table = BlockTable()
    pool.reserve(table, tokens)
    pool.grow(table, tokens, ())
    table.length = tokens
    return table


@pytest.mark.parametrize(("positions", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2)])
def test_blocks_are_counted_up(positions: int, blocks: int) -> None:
    assert BlockPool(10, 4).blocks_for(positions) == blocks


def test_growing_takes_only_what_is_missing() -> None:
    pool, table = BlockPool(10, 4), BlockTable()
    pool.reserve(table, 20)
    pool.grow(table, 3, ())
    assert len(table.blocks) == 1
    first = list(table.blocks)
    pool.grow(table, 9, ())
    assert table.blocks[:1] == first
    assert len(table.blocks) == 3
    pool.grow(table, 2, ())
    assert len(table.blocks) == 3
    assert pool.free == 7


def test_what_is_promised_to_others_is_refused_by_what_was_wanted() -> None:
    pool = BlockPool(10, 4)
    pool.reserve(BlockTable(), 24)
    with pytest.raises(ServerFull, match=r"5 blocks wanted, 4 of 10") as full:
        pool.reserve(BlockTable(), 17)
    assert full.value.retryable
    assert "--kv-tokens" in full.value.remedy
    assert pool.reserved == 6


def test_a_promise_is_replaced_not_added() -> None:
    pool, table = BlockPool(10, 4), BlockTable()
    for _ in range(5):
        pool.reserve(table, 40)
    assert pool.reserved == 10
    pool.reserve(table, 8)
    assert (pool.reserved, table.reserved) == (2, 2)


def test_a_refused_promise_leaves_the_old_one() -> None:
    pool, table = BlockPool(10, 4), BlockTable()
    pool.reserve(BlockTable(), 24)
    pool.reserve(table, 16)
    with pytest.raises(ServerFull):
        pool.reserve(table, 20)
    assert (pool.reserved, table.reserved) == (10, 4)


def test_unreserving_keeps_the_blocks_and_releasing_gives_them_back() -> None:
    pool = BlockPool(10, 4)
    table = held(pool, 12)
    pool.unreserve(table)
    assert (pool.reserved, pool.free, table.length) == (0, 7, 12)
    pool.release(table)
    assert (pool.free, table.blocks, table.length) == (10, [], 0)
    pool.release(table)  # twice is once
    assert pool.free == 10


def test_the_pool_running_dry_takes_from_those_who_wait_in_order_and_no_more_than_needed() -> None:
    pool = BlockPool(10, 4)
    waiting = [held(pool, 12) for _ in range(3)]
    for table in waiting:
        pool.unreserve(table)
    table = BlockTable()
    pool.reserve(table, 16)
    pool.grow(table, 16, waiting)
    assert [len(victim.blocks) for victim in waiting] == [0, 3, 3]
    assert [victim.length for victim in waiting] == [0, 12, 12]
    assert len(table.blocks) == 4


def test_nobody_is_evicted_while_blocks_are_free() -> None:
    pool = BlockPool(10, 4)
    waiting = held(pool, 12)
    pool.unreserve(waiting)
    held_by_other = BlockTable()
    pool.reserve(held_by_other, 28)
    pool.grow(held_by_other, 28, [waiting])
    assert len(waiting.blocks) == 3


def test_outgrowing_every_block_is_our_fault_not_the_clients() -> None:
    pool = BlockPool(2, 4)
    with pytest.raises(InternalError):
        pool.grow(BlockTable(), 9, ())


def test_a_smaller_promise_gives_back_the_blocks_beyond_it() -> None:
    pool = BlockPool(10, 4)
    table = held(pool, 32)
    pool.unreserve(table)
    pool.reserve(table, 8)  # the next turn is short
    other = BlockTable()
    pool.reserve(other, 32)
    pool.grow(other, 32, ())  # as promised
    assert (len(table.blocks), table.length) == (2, 8)


def test_whatever_comes_promises_are_kept_and_every_block_has_one_owner() -> None:
    rng = random.Random(1)
    blocks, size = 12, 3
    pool = BlockPool(blocks, size)
    tables = [BlockTable() for _ in range(4)]
    promised = [0] * 4
    for _ in range(5000):
        who, amount = rng.randrange(4), rng.randint(1, blocks * size)
        table = tables[who]
        match rng.choice(["turn", "turn", "finish", "expire", "roll back"]):
            case "turn":
                with contextlib.suppress(ServerFull):
                    pool.reserve(table, amount)
                    promised[who] = amount
                idle = [other for other, most in zip(tables, promised, strict=True) if not most]
                pool.grow(table, promised[who], idle)
                table.length = max(table.length, promised[who])
            case "finish":
                pool.unreserve(table)
                promised[who] = 0
            case "expire":
                pool.release(table)
                promised[who] = 0
            case _:
                table.length = min(table.length, amount)
        owned = [block for each in tables for block in each.blocks]
        assert len(owned) == len(set(owned))
        assert len(owned) + pool.free == blocks
        assert pool.reserved == sum(pool.blocks_for(most) for most in promised) <= blocks
        assert all(each.length <= len(each.blocks) * size for each in tables)
