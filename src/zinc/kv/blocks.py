"""Reference counts of KV cache blocks.

Positions [64 i, 64 i + 64) of a sequence lie in one block, which spans all layers of a group. A
block may be held by several sequences with a common prefix; it becomes free when the last of them
releases it. The prefix cache can keep a block too. A block that only the prefix cache keeps is idle
and can be evicted at any time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from zinc.core.errors import MemoryLimitError


class BlockAllocator:
    """Allocator of block numbers 0 to n_blocks - 1, the lowest free ones first.

    Ascending numbers keep the blocks of a single conversation contiguous in memory.
    """

    def __init__(self, n_blocks: int) -> None:
        self.n_blocks = n_blocks
        self._free = list(range(n_blocks))  # a heap
        self._holders = [0] * n_blocks
        self._kept = bytearray(n_blocks)
        self._n_idle = 0

    @property
    def n_free(self) -> int:
        return len(self._free)

    @property
    def n_idle(self) -> int:
        """Number of blocks that only the prefix cache keeps."""
        return self._n_idle

    @property
    def n_held(self) -> int:
        """Number of blocks that sequences hold."""
        return self.n_blocks - len(self._free) - self._n_idle

    def acquire(self, count: int) -> list[int]:
        """Return `count` free blocks with one holder each.

        Raises MemoryLimitError, and allocates none, if fewer are free.
        """
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
        """Add a holder to blocks that are already held or kept. Raises ValueError for free ones."""
        for block in blocks:
            if self._holders[block] == 0 and not self._kept[block]:
                raise ValueError(f"block {block} is free and cannot be shared")
            self._n_idle -= self.is_idle(block)
            self._holders[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Remove a holder; a block without holders becomes idle if it is kept, else free."""
        for block in blocks:
            if self._holders[block] == 0:
                raise ValueError(f"block {block} is free already")
            self._holders[block] -= 1
            if self._holders[block] > 0:
                continue
            if self._kept[block]:
                self._n_idle += 1
            else:
                heapq.heappush(self._free, block)

    def keep(self, block: int) -> None:
        """Keep a block for the prefix cache; a sequence must hold it."""
        if self._kept[block] or self._holders[block] == 0:
            raise ValueError(f"block {block} is kept already, or free")
        self._kept[block] = True

    def drop(self, block: int) -> None:
        """Stop keeping a block; it becomes free if no sequence holds it."""
        if not self._kept[block]:
            raise ValueError(f"block {block} is not kept")
        self._n_idle -= self.is_idle(block)
        self._kept[block] = False
        if self._holders[block] == 0:
            heapq.heappush(self._free, block)

    def is_idle(self, block: int) -> bool:
        """Return whether the prefix cache keeps a block that no sequence holds."""
        return bool(self._kept[block]) and self._holders[block] == 0

    def is_kept(self, block: int) -> bool:
        """Return whether the prefix cache keeps a block."""
        return bool(self._kept[block])

    def n_exclusive(self, blocks: Iterable[int]) -> int:
        """Return how many of `blocks` have exactly one holder."""
        return sum(1 for block in blocks if self._holders[block] == 1)

    def check(self) -> None:
        """Raise AssertionError if free list and holder counts disagree; call it between steps."""
        free = set(self._free)
        assert len(free) == len(self._free), "a block is free twice"
        assert self._n_idle == sum(map(self.is_idle, range(self.n_blocks))), "idle blocks are lost"
        for block, holders in enumerate(self._holders):
            in_use = holders > 0 or self.is_kept(block)
            assert in_use != (block in free), f"block {block} has {holders} holders"
