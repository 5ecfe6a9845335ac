"""The KV cache of a model as sequences use it: block tables, state slots and cached prefixes.

A sequence is attached (it shares its cached prefix), grows as it runs, gives back blocks that its
sliding windows have passed, commits prefixes for others to reuse, and is released. Memory that only
the prefix cache holds counts as available and is evicted on demand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field

import numpy as np
import numpy.typing as npt

from zinc.core.dataclass import dataclass
from zinc.core.errors import MemoryLimitError
from zinc.core.rounding import ceil_div
from zinc.kv.blocks import BlockAllocator
from zinc.kv.copier import Copier
from zinc.kv.matching import Match
from zinc.kv.node import Node
from zinc.kv.slots import SlotAllocator
from zinc.kv.swap import Swapped, copy_in, copy_out
from zinc.kv.tree import PrefixTree

# Blocks kept after a sliding window has passed them, as the next turn often diverges near the end.
SLACK_BLOCKS = 2


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share block tables.

    window: size of their sliding window in tokens, 0 for full attention.
    """

    n_blocks: int
    window: int = 0
    block_bytes: int = 0


@dataclass(slots=True)
class Allocation:
    """Blocks and slot of one sequence.

    tables: block table of each group, -1 for blocks that a window has passed. n_trimmed: number of
    leading entries of each table that were given back. last_kept: node of the last full block that
    was inserted into the prefix cache. namespace: of the prefixes that it reuses and leaves behind.
    """

    tables: list[list[int]]
    slot: int
    n_trimmed: list[int]
    last_kept: Node | None = None
    namespace: bytes = b""


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """The cached prefix that a sequence would get when it is attached to the pool.

    n_cached: tokens of the prefix. pinned_blocks: idle blocks of each group that would no longer be
    available to others.
    """

    n_cached: int
    pinned_blocks: tuple[int, ...]


@dataclass(slots=True)
class PoolStats:
    """Counters since the pool was created."""

    lookups: int = 0
    hits: int = 0
    cached_tokens: int = 0
    copied_blocks: int = 0
    checkpoints: int = 0
    swapped_out: int = 0
    swapped_in: int = 0
    fetched_tokens: int = 0


@dataclass(eq=False)
class CachePool:
    """Blocks of `block_tokens` positions for groups of layers, and `n_slots` state slots.

    chunk_tokens: most tokens that a sequence gains in one step. recurrent: the model has recurrent
    layers, whose states take `state_bytes` a slot. prefix_cache: keep prefixes for reuse, at most
    `limit_bytes` of them.
    """

    groups: Sequence[Group]
    block_tokens: int
    n_slots: int
    copier: Copier
    chunk_tokens: int = 512
    recurrent: bool = False
    state_bytes: int = 0
    prefix_cache: bool = True
    limit_bytes: int | None = None
    stats: PoolStats = field(default_factory=PoolStats)

    def __post_init__(self) -> None:
        self.allocators = [BlockAllocator(g.n_blocks) for g in self.groups]
        self.slots = SlotAllocator(self.n_slots)
        self.tree = PrefixTree(
            self.allocators,
            self.slots,
            [g.window for g in self.groups],
            self.block_tokens,
            recurrent=self.recurrent,
            block_bytes=[g.block_bytes for g in self.groups],
            state_bytes=self.state_bytes,
            limit_bytes=self.limit_bytes,
        )

    # -- sizes ---------------------------------------------------------------------------------

    @property
    def available(self) -> tuple[int, ...]:
        """Number of blocks of each group that are free or idle."""
        return tuple(a.n_free + a.n_idle for a in self.allocators)

    @property
    def available_slots(self) -> int:
        """Number of slots that are free or hold a checkpoint."""
        return self.slots.n_free + self.tree.n_states

    @property
    def cached_bytes(self) -> int:
        """Size of what the prefix cache keeps."""
        return self.tree.n_bytes

    @property
    def total_bytes(self) -> int:
        """Size of all blocks and states."""
        states = self.n_slots * self.state_bytes if self.recurrent else 0
        return sum(g.n_blocks * g.block_bytes for g in self.groups) + states

    def blocks(self, n_tokens: int) -> int:
        """Return the number of blocks for `n_tokens` positions."""
        return ceil_div(n_tokens, self.block_tokens)

    def max_blocks(self, n_tokens: int) -> tuple[int, ...]:
        """Return the most blocks of each group that a sequence of `n_tokens` holds at a time."""
        return tuple(min(self.blocks(n_tokens), self._cap(g.window)) for g in self.groups)

    def max_tokens(self, n_tokens: int) -> int:
        """Return the most tokens, up to `n_tokens`, that a single sequence can have."""
        for n_blocks in range(self.blocks(n_tokens), 0, -1):
            most = self.max_blocks(n_blocks * self.block_tokens)
            if all(m <= g.n_blocks for m, g in zip(most, self.groups, strict=True)):
                return min(n_tokens, n_blocks * self.block_tokens)
        return 0

    def _cap(self, window: int) -> int:
        if not window:
            return 1 << 30
        return window_blocks(window, self.chunk_tokens, self.block_tokens)

    # -- sequences ------------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """Counter that changes when results of `prefix_hit` may change."""
        return self.tree.generation

    def prefix_hit(self, key: bytes, limit: int, namespace: bytes = b"") -> PrefixHit:
        """Return what `attach` would find, without attaching."""
        if not self.prefix_cache:
            return PrefixHit(0, (0,) * len(self.groups))
        match = self.tree.find(key, limit, namespace)
        pinned_blocks = []
        for group, allocator in enumerate(self.allocators):
            blocks = [node.blocks[group] for node in self._shared(match, group)]
            pinned_blocks.append(sum(1 for b in blocks if b >= 0 and allocator.is_idle(b)))
        return PrefixHit(match.n_tokens, tuple(pinned_blocks))

    def attach(self, key: bytes, limit: int, namespace: bytes = b"") -> tuple[Allocation, int]:
        """Return a new allocation and the number of tokens that it has from the prefix cache.

        key: token ids of the sequence, from `key_of`; at most `limit` tokens of it are matched.
        Raises MemoryLimitError if no slot is left.
        """
        if not key or not self.prefix_cache:
            allocation = self._empty(self._slot_for(Match(0)), namespace)
            self.stats.lookups += 1
            return allocation, 0
        match = self.tree.find(key, limit, namespace)
        self.tree.touch(match)
        allocation = self._empty(self._slot_for(match), namespace)
        n_full, n_tail = divmod(match.n_tokens, self.block_tokens)
        path = match.path[:n_full]
        for group, allocator in enumerate(self.allocators if path else ()):
            shared = {id(node): node for node in self._shared(match, group)}
            table = [n.blocks[group] if id(n) in shared else -1 for n in path]
            allocator.share(b for b in table if b >= 0)
            allocation.tables[group] = table
            allocation.n_trimmed[group] = next((i for i, b in enumerate(table) if b >= 0), n_full)
        if n_tail:
            try:
                self._copy_tail(allocation, match)
            except MemoryLimitError:  # no block for the tail: run it again
                self.release(allocation)
                return self.attach(key, n_full * self.block_tokens, namespace)
            except BaseException:  # a device error: give back what is held
                self.release(allocation)
                raise
        self.stats.lookups += 1
        self.stats.hits += match.n_tokens > 0
        self.stats.cached_tokens += match.n_tokens
        return allocation, match.n_tokens

    def grow(self, allocation: Allocation, n_tokens: int) -> None:
        """Allocate the missing blocks for `n_tokens` positions.

        Raises MemoryLimitError, and allocates none, if there are too few.
        """
        n_blocks = self.blocks(n_tokens)
        grown = [
            (group, table, n_blocks - len(table))
            for group, table in enumerate(allocation.tables)
            if len(table) < n_blocks
        ]
        for group, _, count in grown:
            if count > self.allocators[group].n_free:
                self.reserve(group, count)
        for group, table, count in grown:
            table += self.allocators[group].acquire(count)

    def trim(self, allocation: Allocation, n_tokens: int) -> None:
        """Give back blocks that no token after the first `n_tokens` attends to."""
        for group, (allocator, g) in enumerate(zip(self.allocators, self.groups, strict=True)):
            if not g.window:
                continue
            table, first = allocation.tables[group], allocation.n_trimmed[group]
            gone = max(0, n_tokens - g.window + 1) // self.block_tokens - SLACK_BLOCKS
            if gone > first:
                allocator.release(b for b in table[first:gone] if b >= 0)
                table[first:gone] = [-1] * (gone - first)
                allocation.n_trimmed[group] = gone

    @contextmanager
    def borrowed(self, n_blocks: int) -> Iterator[list[list[int]]]:
        """Hold `n_blocks` blocks of each group, for tokens that no later step needs.

        Raises MemoryLimitError if there are too few.
        """
        blocks: list[list[int]] = []
        try:
            for group, allocator in enumerate(self.allocators):
                self.reserve(group, n_blocks)
                blocks.append(allocator.acquire(n_blocks))
            yield blocks
        finally:
            for allocator, held in zip(self.allocators, blocks, strict=False):
                allocator.release(held)

    def commit(self, allocation: Allocation, key: bytes) -> None:
        """Keep a prefix that has been run, without its recurrent state."""
        if self.prefix_cache:
            self._keep(allocation, key)

    def checkpoint(self, allocation: Allocation, key: bytes) -> None:
        """Keep a prefix that has been run, with a copy of the recurrent state at its end."""
        if not self.prefix_cache:
            return
        node, offset = self._keep(allocation, key)
        if not self.recurrent or self.tree.has_state(node, offset):
            return
        if self.slots.n_free == 0 and not self.tree.evict_state():
            return
        slot = self.slots.acquire()
        kept = False
        try:
            self.copier.copy_state(allocation.slot, slot)
            kept = self.tree.put_state(node, offset, slot)
        finally:
            if not kept:
                self.slots.release(slot)
        self.stats.checkpoints += kept

    def release(self, allocation: Allocation, key: bytes | None = None) -> None:
        """Release an allocation; with the key of the tokens that were run, keep them for reuse."""
        slot: int | None = allocation.slot
        if key and self.prefix_cache:
            node, offset = self._keep(allocation, key)
            if self.recurrent and self.tree.put_state(node, offset, allocation.slot):
                slot = None
        for allocator, table in zip(self.allocators, allocation.tables, strict=True):
            allocator.release(b for b in table if b >= 0)
            table.clear()
        self.tree.generation += 1  # blocks may have become idle
        self.tree.shrink()
        if slot is not None:
            self.slots.release(slot)

    def allocation_bytes(self, allocation: Allocation) -> int:
        """Return the size of a copy of an allocation, as `swap_out` makes."""
        blocks = sum(
            g.block_bytes * sum(b >= 0 for b in table)
            for g, table in zip(self.groups, allocation.tables, strict=True)
        )
        return blocks + (self.state_bytes if self.recurrent else 0)

    def swap_out(self, allocation: Allocation, n_tokens: int) -> Swapped:
        """Copy the cache of the first `n_tokens`; the allocation still has to be released."""
        self.stats.swapped_out += 1
        n_table = self.blocks(n_tokens)
        tables = [table[:n_table] for table in allocation.tables]
        slot = allocation.slot if self.recurrent else None
        return copy_out(self.copier, tables, allocation.n_trimmed, n_tokens, slot)

    def swap_in(self, swapped: Swapped, namespace: bytes = b"") -> Allocation:
        """Return an allocation with the data of a copy.

        Raises MemoryLimitError or an error of the device, and then holds nothing.
        """
        slot = self._slot_for(Match(0))
        n_trimmed = list(swapped.n_trimmed)
        allocation = Allocation([[] for _ in self.groups], slot, n_trimmed, namespace=namespace)
        try:
            for group, (count, blocks) in enumerate(
                zip(swapped.n_blocks, swapped.blocks, strict=True)
            ):
                self.reserve(group, count)
                fresh = iter(self.allocators[group].acquire(count))
                allocation.tables[group] = [
                    -1 if block is None else next(fresh) for block in blocks
                ]
            copy_in(self.copier, swapped, allocation.tables, slot if self.recurrent else None)
        except BaseException:
            self.release(allocation)
            raise
        self.stats.swapped_in += 1
        return allocation

    def exclusive_blocks(self, allocation: Allocation) -> tuple[int, ...]:
        """Return the number of blocks of each group that only this sequence holds."""
        return tuple(
            allocator.n_exclusive(b for b in table if b >= 0)
            for allocator, table in zip(self.allocators, allocation.tables, strict=True)
        )

    def check(self) -> None:
        """Raise AssertionError if blocks or slots are lost or held twice; call it between steps."""
        for allocator in self.allocators:
            allocator.check()
        self.slots.check()
        self.tree.check()

    # -- helpers --------------------------------------------------------------------------------

    def _empty(self, slot: int, namespace: bytes) -> Allocation:
        """Return an allocation without blocks."""
        return Allocation([[] for _ in self.groups], slot, [0] * len(self.groups), None, namespace)

    def _keep(self, allocation: Allocation, key: bytes) -> tuple[Node, int]:
        """Insert the blocks of a sequence into the tree; return the last node and offset in it."""
        node, offset = self.tree.insert(
            key, allocation.tables, allocation.last_kept, allocation.namespace
        )
        allocation.last_kept = node if offset == self.block_tokens else node.parent
        return node, offset

    def _shared(self, match: Match, group: int) -> Sequence[Node]:
        """Return the nodes of a match whose block of a group is full and within the window."""
        window = self.groups[group].window
        gone = max(0, match.n_tokens - window + 1) // self.block_tokens if window else 0
        return match.path[gone : match.n_tokens // self.block_tokens]

    def _slot_for(self, match: Match) -> int:
        """Return a slot with a copy of the state of a match.

        If no other slot is left, the checkpoint itself becomes the slot. Raises MemoryLimitError if
        sequences hold every slot.
        """
        full = self.slots.n_free == 0 and not self.tree.evict_state(except_slot=match.state)
        if full and match.state >= 0:
            self.tree.take_state(match.state)
            return match.state
        slot = self.slots.acquire()
        if match.state >= 0:
            try:
                self.copier.copy_state(match.state, slot)
            except BaseException:  # a device error
                self.slots.release(slot)
                raise
        return slot

    def _copy_tail(self, allocation: Allocation, match: Match) -> None:
        """Copy the last, partly matched block, since the sequence will write after the match."""
        tail = match.path[-1]
        sources = [block for block in tail.blocks if block >= 0]
        pinned = [g for g, block in enumerate(tail.blocks) if block >= 0]
        for group, block in zip(pinned, sources, strict=True):
            self.allocators[group].share([block])
        try:
            for group in range(len(self.groups)):
                self.reserve(group, 1)
            for group, block in enumerate(tail.blocks):
                (target,) = self.allocators[group].acquire(1)
                allocation.tables[group].append(target)
                if block >= 0:
                    self.copier.copy_block(group, block, target)
                    self.stats.copied_blocks += 1
        finally:
            for group, block in zip(pinned, sources, strict=True):
                self.allocators[group].release([block])

    def reserve(self, group: int, count: int) -> None:
        """Evict until `count` blocks are free. Raises MemoryLimitError if that is impossible."""
        allocator = self.allocators[group]
        short = count - allocator.n_free
        if short > 0:
            # Evict some extra, so that a growing sequence does not evict for every block.
            spare = min(allocator.n_blocks // 32, max(0, allocator.n_idle - short))
            self.tree.evict_blocks(group, short + spare)
        if count > allocator.n_free:
            raise MemoryLimitError(
                f"cannot hold {count * self.block_tokens} more tokens",
                f"{allocator.n_free} of {allocator.n_blocks} cache blocks are free",
                "wait for another request to finish, or load with a larger context",
            )


def window_blocks(window: int, chunk_tokens: int, block_tokens: int) -> int:
    """Return the most blocks that a sequence holds in a group with a sliding window.

    chunk_tokens: most tokens that it gains in one step.
    """
    return ceil_div(window + chunk_tokens, block_tokens) + SLACK_BLOCKS + 1


def key_of(ids: Sequence[int] | npt.NDArray[np.int32]) -> bytes:
    """Return token ids as a key of the prefix tree: int32 ids as bytes."""
    return np.asarray(ids, np.int32).tobytes()
