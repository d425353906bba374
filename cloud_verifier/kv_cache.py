"""Who holds which KV block.

A pool of equal blocks; a `BlockTable` per session. Memory is promised before it is used: a
session in flight has reserved every block it can come to need, so that a pass never fails for
want of one. Blocks of sessions that only wait for their next turn are not reserved; they are
taken back when the pool runs dry.
"""

from __future__ import annotations

from collections.abc import Iterable

from draftwire.errors import InternalError, ServerFull


class BlockTable:
    """The blocks of one session: position t is in `blocks[t // block_size]`.

    `length` leading positions hold the KV of committed tokens. Rolling back lowers it.
    """

    __slots__ = ("blocks", "length", "reserved")

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.length = 0
        self.reserved = 0


class BlockPool:
    """All blocks of a target.

    Invariants: reserved ≤ num_blocks; free + held = num_blocks; a table with a promise holds no
    more than was promised, so that every promise can be kept by evicting those without.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.reserved = 0
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def free(self) -> int:
        """Blocks that no table holds."""
        return len(self._free)

    def blocks_for(self, positions: int) -> int:
        """Blocks that `positions` positions take."""
        return -(-positions // self.block_size)

    def reserve(self, table: BlockTable, positions: int) -> None:
        """Promise `table` the blocks for `positions` positions in all; what it holds beyond goes.

        Raises `ServerFull` if what is already promised to others leaves too few.
        """
        wanted = self.blocks_for(positions)
        others = self.reserved - table.reserved
        if others + wanted > self.num_blocks:
            raise ServerFull(
                f"KV memory is full: {wanted} blocks wanted, {self.num_blocks - others} of "
                f"{self.num_blocks} not promised to others",
                remedy="try again when other sessions have finished, ask for fewer max_tokens, "
                "or serve with more --kv-tokens",
            )
        self.reserved = others + wanted
        table.reserved = wanted
        self._free.extend(reversed(table.blocks[wanted:]))
        del table.blocks[wanted:]
        table.length = min(table.length, wanted * self.block_size)

    def unreserve(self, table: BlockTable) -> None:
        """Take the promise back; the blocks held stay until they are released."""
        self.reserved -= table.reserved
        table.reserved = 0

    def grow(self, table: BlockTable, positions: int, evictable: Iterable[BlockTable]) -> None:
        """Give `table` blocks for `positions` positions, taking from `evictable` in order."""
        missing = self.blocks_for(positions) - len(table.blocks)
        if missing <= 0:
            return
        for victim in evictable:
            if len(self._free) >= missing:
                break
            self.release(victim)
        if len(self._free) < missing:
            raise InternalError("a session outgrew the KV blocks promised to it")
        table.blocks.extend(self._free.pop() for _ in range(missing))

    def release(self, table: BlockTable) -> None:
        """Take back the blocks and the promise."""
        self.unreserve(table)
        self._free.extend(reversed(table.blocks))
        table.blocks.clear()
        table.length = 0
