"""KV blocks: shared by content, counted by holder, written by one, forgotten when long unused."""

from __future__ import annotations

import copy

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cloud_verifier.kv_cache import BlockPool, BlockTable
from draftwire.types import Tokens

TEXT = range(100, 200)


def fill(pool: BlockPool, tokens: Tokens, salt: str = "") -> BlockTable:
    """A table that has computed `tokens`, all of them committed."""
    table = BlockTable(salt)
    pool.adopt(table, tokens)
    assert pool.grow(table, len(tokens))
    table.length = len(tokens)
    pool.publish(table, tokens)
    return table


def found(pool: BlockPool, tokens: Tokens, salt: str = "") -> int:
    """How many leading positions of `tokens` the pool could give."""
    table = BlockTable(salt)
    copy.deepcopy(pool).adopt(table, tokens)
    return table.length


def books(pool: BlockPool) -> tuple[int, int, int]:
    return pool.free, pool.cached, pool.held


@pytest.mark.parametrize(("positions", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2)])
def test_blocks_are_counted_up(positions: int, blocks: int) -> None:
    assert BlockPool(10, 4).blocks_for(positions) == blocks


def test_growing_takes_only_what_is_missing() -> None:
    pool, table = BlockPool(10, 4), BlockTable()
    assert pool.grow(table, 3)
    first = list(table.blocks)
    assert pool.grow(table, 9)
    assert table.blocks[:1] == first
    assert len(table.blocks) == 3
    assert pool.grow(table, 2)
    assert (len(table.blocks), pool.free) == (3, 7)


def test_growing_past_what_there_is_gives_nothing() -> None:
    pool, table = BlockPool(3, 4), BlockTable()
    other = fill(pool, TEXT[:4])
    assert not pool.grow(table, 9)
    assert (table.blocks, books(pool)) == ([], (2, 0, 1))
    pool.release(other)
    assert pool.grow(table, 9)


def test_only_full_blocks_of_committed_tokens_are_found_again() -> None:
    pool = BlockPool(10, 4)
    table = BlockTable()
    pool.grow(table, 11)
    table.length = 7  # 4 drafts were rejected
    pool.publish(table, TEXT[:7])
    pool.release(table)
    assert books(pool) == (9, 1, 0)
    again = BlockTable()
    pool.adopt(again, TEXT[:11])
    assert again.length == 4


def test_what_was_written_since_is_published_too() -> None:
    pool = BlockPool(10, 4)
    table = fill(pool, TEXT[:6])
    pool.grow(table, 13)
    table.length = 13
    pool.publish(table, TEXT[:13])
    pool.release(table)
    assert books(pool) == (7, 3, 0)


@pytest.mark.parametrize(("asked", "length"), [(4, 0), (5, 4), (8, 4), (9, 8), (20, 8)])
def test_the_last_token_is_never_adopted_as_a_pass_needs_one(asked: int, length: int) -> None:
    pool = BlockPool(10, 4)
    pool.release(fill(pool, TEXT[:8]))
    table = BlockTable()
    pool.adopt(table, TEXT[:asked])
    assert (table.length, len(table.blocks)) == (length, length // 4)


def test_a_key_says_all_that_comes_before() -> None:
    pool = BlockPool(10, 2)
    pool.release(fill(pool, [1, 2, 3, 4, 5]))
    for text in ([3, 4, 5], [9, 2, 3, 4, 5], [9, 9, 3, 4, 5]):
        table = BlockTable()
        pool.adopt(table, text)
        assert table.blocks == []


def test_two_holders_share_what_they_have_in_common_and_nothing_after() -> None:
    pool = BlockPool(10, 4)
    first = fill(pool, TEXT[:10])
    second = fill(pool, [*TEXT[:8], 7, 8, 9])
    assert second.blocks[:2] == first.blocks[:2]
    assert not set(second.blocks[2:]) & set(first.blocks)
    assert books(pool) == (6, 0, 4)


def test_owners_share_nothing() -> None:
    pool = BlockPool(10, 4)
    mine = fill(pool, TEXT[:9], "me")
    yours = fill(pool, TEXT[:9], "you")
    assert not set(mine.blocks) & set(yours.blocks)
    assert mine.keys != yours.keys


def test_a_shared_block_stays_held_until_its_last_holder_lets_go() -> None:
    pool = BlockPool(10, 4)
    tables = [fill(pool, TEXT[:9]) for _ in range(3)]
    assert books(pool) == (5, 0, 5)  # two blocks shared, one each
    for table, held in zip(tables, (4, 3, 0), strict=True):
        pool.release(table)
        assert pool.held == held
    assert books(pool) == (8, 2, 0)


def test_releasing_twice_is_once() -> None:
    pool = BlockPool(10, 4)
    first, second = fill(pool, TEXT[:9]), fill(pool, TEXT[:9])
    pool.release(first)
    pool.release(first)
    assert (first.blocks, first.keys, first.length) == ([], [], 0)
    assert pool.held == len(second.blocks) == 3


def test_the_same_content_computed_twice_is_cached_once() -> None:
    pool = BlockPool(10, 4)
    tables = [BlockTable(), BlockTable()]
    for table in tables:  # neither finds the other's, as none is published yet
        pool.grow(table, 9)
        table.length = 9
    for table in tables:
        pool.publish(table, TEXT[:9])
    assert tables[0].keys == tables[1].keys
    assert pool.held == 6
    for table in tables:
        pool.release(table)
    assert books(pool) == (8, 2, 0)


def test_blocks_cached_longest_are_given_away_first_and_only_when_none_is_free() -> None:
    pool = BlockPool(6, 4)
    old, new = fill(pool, [1] * 9), fill(pool, [2] * 9)
    pool.release(old, now=1)
    pool.release(new, now=2)
    assert books(pool) == (2, 4, 0)
    taker = BlockTable()
    pool.grow(taker, 8)
    assert pool.evictions == 0
    pool.grow(taker, 16)
    assert pool.evictions == 2
    assert (found(pool, [1] * 9), found(pool, [2] * 9)) == (0, 8)


def test_use_makes_a_block_young_again() -> None:
    pool = BlockPool(4, 4)
    first, second = fill(pool, [1] * 5), fill(pool, [2] * 5)
    pool.release(first, now=1)
    pool.release(second, now=2)
    pool.release(fill(pool, [1] * 5), now=3)
    pool.grow(BlockTable(), 12)
    assert (found(pool, [1] * 5), found(pool, [2] * 5)) == (4, 0)


def test_the_end_of_a_text_goes_before_its_beginning() -> None:
    pool = BlockPool(5, 4)
    pool.release(fill(pool, TEXT[:17]))
    left = []
    for blocks in range(1, 6):
        taker = BlockTable()
        pool.grow(taker, 4 * blocks)
        pool.release(taker)
        left.append(found(pool, TEXT[:17]))
    assert left == [16, 12, 8, 4, 0]


def test_held_blocks_are_never_given_away() -> None:
    pool = BlockPool(4, 4)
    holder = fill(pool, TEXT[:9])
    pool.release(fill(pool, TEXT[:9]))
    assert not pool.grow(BlockTable(), 8)
    pool.expire(now=1e9, ttl_s=0)
    assert pool.held == len(holder.blocks) == 3
    assert found(pool, TEXT[:9]) == 8


def test_a_cached_block_is_forgotten_when_its_time_is_up_and_that_is_no_eviction() -> None:
    pool = BlockPool(10, 4)
    tables = [fill(pool, [name] * 5) for name in (1, 2)]
    for at, table in enumerate(tables, start=1):
        pool.release(table, now=float(at))
    assert pool.oldest == 1.0
    pool.expire(now=10.9, ttl_s=10)
    assert pool.cached == 2
    pool.expire(now=11.0, ttl_s=10)  # on the dot: who waits for it must find it done
    assert (pool.cached, pool.oldest) == (1, 2.0)
    pool.expire(now=12.0, ttl_s=10)
    assert (books(pool), pool.oldest, pool.evictions) == ((10, 0, 0), None, 0)


class Holders(RuleBasedStateMachine):
    """Four sessions of two owners over few blocks; what a block holds is what was written last."""

    SIZE = 2
    BLOCKS = 9
    texts = st.lists(st.integers(0, 1), min_size=1, max_size=12)
    who = st.integers(0, 3)

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(self.BLOCKS, self.SIZE)
        self.tables = [BlockTable("ab"[name % 2]) for name in range(4)]
        self.texts_of: list[list[int]] = [[] for _ in range(4)]
        self.content: dict[tuple[int, int], tuple[bytes, Tokens]] = {}
        self.meaning: dict[bytes, tuple[bytes, Tokens]] = {}
        self.now = 0.0

    @rule(who=who, text=texts)
    def adopt(self, who: int, text: list[int]) -> None:
        self.release(who)
        self.texts_of[who] = text
        self.pool.adopt(self.tables[who], text)
        assert self.tables[who].length < len(text)

    @rule(who=who, count=st.integers(1, 6), rejected=st.integers(0, 2))
    def compute(self, who: int, count: int, rejected: int) -> None:
        """A pass: some tokens, and drafts that do not hold."""
        table, text = self.tables[who], self.texts_of[who]
        end = min(table.length + count, len(text))
        free = self.pool.free + self.pool.cached
        missing = max(0, self.pool.blocks_for(end + rejected) - len(table.blocks))
        assert self.pool.grow(table, end + rejected) == (missing <= free)
        if missing > free:
            return
        others = {block for other in self.tables if other is not table for block in other.blocks}
        for at in range(table.length, end + rejected):
            block = table.blocks[at // self.SIZE]
            assert block not in others
            written = tuple(text[: at + 1]) if at < end else ("rejected",)
            self.content[block, at % self.SIZE] = (table.salt, written)
        table.length = end

    @rule(who=who)
    def publish(self, who: int) -> None:
        self.pool.publish(self.tables[who], self.texts_of[who])

    @rule(who=who)
    def release(self, who: int) -> None:
        self.now += 1
        self.pool.release(self.tables[who], self.now)
        self.texts_of[who] = []

    @precondition(lambda self: self.pool.cached)
    @rule(ttl_s=st.integers(0, 8))
    def expire(self, ttl_s: int) -> None:
        self.now += 1
        self.pool.expire(self.now, ttl_s)
        assert self.pool.oldest is None or self.pool.oldest + ttl_s > self.now

    @invariant()
    def every_block_is_accounted_for(self) -> None:
        held = {block for table in self.tables for block in table.blocks}
        free, cached = set(self.pool._free), set(self.pool._cached)
        assert len(free) == self.pool.free
        assert self.pool.held == len(held)
        assert len(free) + len(cached) + len(held) == self.BLOCKS
        assert free | cached | held == set(range(self.BLOCKS))
        for table in self.tables:
            assert len(set(table.blocks)) == len(table.blocks)

    @invariant()
    def a_table_holds_its_own_text(self) -> None:
        for table, text in zip(self.tables, self.texts_of, strict=True):
            for at in range(table.length):
                held = self.content[table.blocks[at // self.SIZE], at % self.SIZE]
                assert held == (table.salt, tuple(text[: at + 1]))

    @invariant()
    def equal_keys_mean_equal_tokens(self) -> None:
        for table, text in zip(self.tables, self.texts_of, strict=True):
            for count, key in enumerate(table.keys, start=1):
                said = (table.salt, tuple(text[: count * self.SIZE]))
                assert self.meaning.setdefault(key, said) == said
        assert len(set(self.meaning.values())) == len(self.meaning)


Holders.TestCase.settings = settings(max_examples=60, stateful_step_count=40, derandomize=True)
TestHolders = Holders.TestCase
