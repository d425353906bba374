"""Who holds which KV block, and what the blocks that nobody holds still contain.

A pool of equal blocks; a `BlockTable` per session. A full block of committed tokens has a key, a
hash over all tokens up to its end: blocks with the same key have the same content, so that
sessions share them, and a session that comes back finds what it left. Blocks are written by one
holder only: what is shared is full, and whoever needs to write into it recomputes it instead.
"""

from __future__ import annotations

import hashlib

from draftwire.types import Tokens, pack_tokens


class BlockTable:
    """The blocks of one session: position t is in `blocks[t // block_size]`.

    `length` leading positions hold the KV of committed tokens; rolling back lowers it. `keys`
    are those of the leading full blocks. `salt` keeps apart what must not be shared.
    """

    __slots__ = ("blocks", "keys", "length", "salt")

    def __init__(self, salt: str = "") -> None:
        self.blocks: list[int] = []
        self.keys: list[bytes] = []
        self.length = 0
        self.salt = salt.encode()


class BlockPool:
    """All blocks of a target: free, held by tables, or cached (held by none, content known).

    Invariant: free + cached + held = num_blocks. `evictions` counts cached blocks that others
    needed, not those that expired.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.evictions = 0
        self._free = list(range(num_blocks - 1, -1, -1))
        self._holders = [0] * num_blocks
        self._cached: dict[int, float] = {}  # block: since when; longest cached first
        self._block_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}

    @property
    def free(self) -> int:
        """Blocks without content."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Blocks held by no session whose content may be found again."""
        return len(self._cached)

    @property
    def held(self) -> int:
        """Blocks held by sessions."""
        return self.num_blocks - self.free - self.cached

    def blocks_for(self, positions: int) -> int:
        """Blocks that `positions` positions take."""
        return -(-positions // self.block_size)

    def adopt(self, table: BlockTable, tokens: Tokens) -> None:
        """Give an empty table the blocks that hold the beginning of `tokens`.

        The last token is never among them: a pass needs one to compute.
        """
        size, key = self.block_size, table.salt
        for at in range(0, (len(tokens) - 1) // size * size, size):
            key = _key(key, tokens[at : at + size])
            block = self._block_of.get(key)
            if block is None:
                break
            self._cached.pop(block, None)
            self._holders[block] += 1
            table.blocks.append(block)
            table.keys.append(key)
        table.length = len(table.blocks) * size

    def grow(self, table: BlockTable, positions: int, *, spare: int = 0) -> bool:
        """Give `table` blocks for `positions` positions, where `spare` are left for others.

        False, and nothing, if there are too few. Takes free blocks, then those cached longest.
        """
        missing = self.blocks_for(positions) - len(table.blocks)
        if missing > 0 and missing + spare > self.free + self.cached:
            return False
        for _ in range(missing):
            if not self._free:
                self._forget_oldest()
                self.evictions += 1
            block = self._free.pop()
            self._holders[block] = 1
            table.blocks.append(block)
        return True

    def publish(self, table: BlockTable, tokens: Tokens) -> None:
        """Key the blocks that committed tokens have filled since the last time."""
        size = self.block_size
        for index in range(len(table.keys), table.length // size):
            parent = table.keys[-1] if table.keys else table.salt
            key = _key(parent, tokens[index * size : (index + 1) * size])
            table.keys.append(key)
            if key not in self._block_of:
                self._block_of[key] = table.blocks[index]
                self._key_of[table.blocks[index]] = key

    def release(self, table: BlockTable, now: float = 0.0) -> None:
        """Take back all blocks; what has a key stays cached, from time `now` on."""
        for block in reversed(table.blocks):  # the end of a text goes before its beginning
            self._holders[block] -= 1
            if self._holders[block]:
                continue
            if block in self._key_of:
                self._cached[block] = now
            else:
                self._free.append(block)
        table.blocks.clear()
        table.keys.clear()
        table.length = 0

    def expire(self, now: float, ttl_s: float) -> None:
        """Free the blocks that have been cached for `ttl_s` seconds."""
        while self.oldest is not None and self.oldest + ttl_s <= now:
            self._forget_oldest()

    @property
    def oldest(self) -> float | None:
        """Since when the block cached longest has been; None if none is."""
        return next(iter(self._cached.values()), None)

    def _forget_oldest(self) -> None:
        block = next(iter(self._cached))
        del self._cached[block]
        del self._block_of[self._key_of.pop(block)]
        self._free.append(block)


def _key(parent: bytes, tokens: Tokens) -> bytes:
    """Key of a block from its parent's and its tokens: BLAKE2b-128, collisions out of reach."""
    return hashlib.blake2b(parent + pack_tokens(tokens), digest_size=16).digest()
