"""Blocks of cache positions: who holds which, by reference count. No tensors here.

A sequence's positions [64 i, 64 i + 64) live in one block of every layer of a group. Blocks may be
held by several sequences at once (a shared prefix); the last one to release it frees it. Runs are
given out in ascending order, so that a lone conversation stays contiguous in memory.
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

    @property
    def n_free(self) -> int:
        return len(self._free)

    @property
    def n_held(self) -> int:
        return self.n_blocks - len(self._free)

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
        """Adds a holder to blocks that are held already."""
        for block in blocks:
            if self._holders[block] == 0:
                raise ValueError(f"block {block} is free and cannot be shared")
            self._holders[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Takes a holder away; a block without holders is free again."""
        for block in blocks:
            if self._holders[block] == 0:
                raise ValueError(f"block {block} is free already")
            self._holders[block] -= 1
            if self._holders[block] == 0:
                heapq.heappush(self._free, block)

    def check(self) -> None:
        """Raises AssertionError when free list and holders disagree; call it when idle."""
        free = set(self._free)
        assert len(free) == len(self._free), "a block is free twice"
        for block, holders in enumerate(self._holders):
            assert (holders == 0) == (block in free), f"block {block} has {holders} holders"
