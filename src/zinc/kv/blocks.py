"""Blocks of cache positions: who holds which, by reference count. No tensors here.

A sequence's positions [64 i, 64 i + 64) live in one block of every layer of a group. Blocks may be
held by several sequences at once (a shared prefix); the last one to release it frees it. The prefix
cache may keep a block as well: a block that nobody but the cache holds is idle, and can be had back
at any time. Runs are given out in ascending order, so that a lone conversation stays contiguous.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from zinc.core.errors import MemoryLimitError


class BlockAllocator:
    """Gives out block numbers 0 to n_blocks - 1."""

    def __init__(self, n_blocks: int) -> None:
        self.n_blocks = n_blocks
        self._free = list(range(n_blocks))  # a heap, so that the lowest go first
        self._holders = [0] * n_blocks
        self._kept = bytearray(n_blocks)
        self._n_idle = 0

    @property
    def n_free(self) -> int:
        return len(self._free)

    @property
    def n_idle(self) -> int:
        """Blocks that only the prefix cache holds."""
        return self._n_idle

    @property
    def n_held(self) -> int:
        """Blocks that sequences hold."""
        return self.n_blocks - len(self._free) - self._n_idle

    def acquire(self, count: int) -> list[int]:
        """`count` free blocks, held once. Raises MemoryLimitError, taking none, when too few."""
        if count > len(self._free):
            raise MemoryLimitError(
                f"cannot hold {count} more cache blocks",
                f"{len(self._free)} of {self.n_blocks} are free",
                "wait for another request to finish, or load with a larger context",
            )
        blocks = [heapq.heappop(self._free) for _ in range(count)]
        for block in blocks:
            self._holders[block] = 1
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Adds a holder to blocks that are held or kept already."""
        for block in blocks:
            if self._holders[block] == 0 and not self._kept[block]:
                raise ValueError(f"block {block} is free and cannot be shared")
            self._n_idle -= self.is_idle(block)
            self._holders[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Takes a holder away; a block without holders is free again, or idle when it is kept."""
        for block in blocks:
            if self._holders[block] == 0:
                raise ValueError(f"block {block} is free already")
            self._holders[block] -= 1
            if self._holders[block] == 0:
                self._let_go(block)

    def keep(self, block: int) -> None:
        """The prefix cache keeps a block that a sequence holds."""
        if self._kept[block] or self._holders[block] == 0:
            raise ValueError(f"block {block} is kept already, or free")
        self._kept[block] = True

    def drop(self, block: int) -> None:
        """The prefix cache lets go of a block."""
        if not self._kept[block]:
            raise ValueError(f"block {block} is not kept")
        self._n_idle -= self.is_idle(block)
        self._kept[block] = False
        if self._holders[block] == 0:
            heapq.heappush(self._free, block)

    def is_idle(self, block: int) -> bool:
        return bool(self._kept[block]) and self._holders[block] == 0

    def is_kept(self, block: int) -> bool:
        return bool(self._kept[block])

    def n_sole(self, blocks: Iterable[int]) -> int:
        """How many of a holder's blocks would be free or idle without it."""
        return sum(1 for block in blocks if self._holders[block] == 1)

    def _let_go(self, block: int) -> None:
        if self._kept[block]:
            self._n_idle += 1
        else:
            heapq.heappush(self._free, block)

    def check(self) -> None:
        """Raises AssertionError when free list and holders disagree; call it when idle."""
        free = set(self._free)
        assert len(free) == len(self._free), "a block is free twice"
        assert self._n_idle == sum(map(self.is_idle, range(self.n_blocks))), "idle blocks are lost"
        for block, holders in enumerate(self._holders):
            in_use = holders > 0 or self.is_kept(block)
            assert in_use != (block in free), f"block {block} has {holders} holders"
