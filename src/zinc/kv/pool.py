"""The cache of a model as sequences see it: block tables, state slots, and prefixes to begin with.

One place decides who gets blocks: a sequence is attached (its cached prefix shared, the rest still
to run), grows as it runs, gives back what has left its windows, commits what others may reuse and
is released. Memory that only the prefix cache holds counts as available and is evicted on demand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from zinc.core.errors import MemoryLimitError
from zinc.kv.blocks import BlockAllocator
from zinc.kv.copier import Copier
from zinc.kv.node import Node
from zinc.kv.slots import SlotAllocator
from zinc.kv.swap import Swapped, copy_in, copy_out
from zinc.kv.tree import Match, PrefixTree

# Blocks behind a window that are kept a while: the next turn often departs a little before the end.
SLACK_BLOCKS = 2


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share block tables. `window` 0 keeps every position, else the last so many."""

    n_blocks: int
    window: int = 0
    block_bytes: int = 0


@dataclass(slots=True)
class Holding:
    """What one sequence holds: a block table for each group (-1 where a window has left) and a
    state slot. `n_trimmed` counts the entries of each table that have been given back. `kept` is
    the last whole block that the prefix cache was given of it. `namespace` is whose prefixes it
    begins with and leaves behind."""

    tables: list[list[int]]
    slot: int
    n_trimmed: list[int]
    kept: Node | None = None
    namespace: bytes = b""


@dataclass(frozen=True, slots=True)
class Prospect:
    """What attaching a sequence would bring: tokens that are cached, and the idle blocks of each
    group that it would take out of what is available."""

    n_cached: int
    pins: tuple[int, ...]


@dataclass(slots=True)
class PoolStats:
    """Counts since the pool was made."""

    lookups: int = 0
    hits: int = 0
    cached_tokens: int = 0
    copied_blocks: int = 0
    checkpoints: int = 0
    swapped_out: int = 0
    swapped_in: int = 0


@dataclass(eq=False)
class CachePool:
    """Blocks of `block_tokens` positions in groups of layers, and `n_slots` recurrent states.

    chunk_tokens: the most positions a sequence gains in one step. recurrent: whether slots have
    anything in them. prefix_cache: whether anything is kept for others; limit_bytes bounds it.
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

    # -- how much there is ----------------------------------------------------------------------

    @property
    def available(self) -> tuple[int, ...]:
        """Blocks of each group that are free, or would be if the prefix cache let go."""
        return tuple(a.n_free + a.n_idle for a in self.allocators)

    @property
    def available_slots(self) -> int:
        return self.slots.n_free + self.tree.n_states

    @property
    def cached_bytes(self) -> int:
        return self.tree.n_bytes

    @property
    def total_bytes(self) -> int:
        """What blocks and states take when all are in use."""
        states = self.n_slots * self.state_bytes if self.recurrent else 0
        return sum(g.n_blocks * g.block_bytes for g in self.groups) + states

    def blocks(self, n_tokens: int) -> int:
        return -(-n_tokens // self.block_tokens)

    def most(self, n_tokens: int) -> tuple[int, ...]:
        """The most blocks of each group that a sequence of so many tokens holds at a time."""
        return tuple(min(self.blocks(n_tokens), self._cap(g.window)) for g in self.groups)

    def longest(self, n_tokens: int) -> int:
        """The most tokens, up to `n_tokens`, that a sequence may have when it is alone."""
        for n_blocks in range(self.blocks(n_tokens), 0, -1):
            most = self.most(n_blocks * self.block_tokens)
            if all(m <= g.n_blocks for m, g in zip(most, self.groups, strict=True)):
                return min(n_tokens, n_blocks * self.block_tokens)
        return 0

    def _cap(self, window: int) -> int:
        if not window:
            return 1 << 30
        return window_blocks(window, self.chunk_tokens, self.block_tokens)

    # -- a sequence's life ----------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """Changes when what `prospect` says may change."""
        return self.tree.generation

    def prospect(self, key: bytes, limit: int, namespace: bytes = b"") -> Prospect:
        """What `attach` would find, without taking it."""
        if not self.prefix_cache:
            return Prospect(0, (0,) * len(self.groups))
        match = self.tree.find(key, limit, namespace)
        pins = []
        for group, allocator in enumerate(self.allocators):
            blocks = [node.blocks[group] for node in self._shared(match, group)]
            pins.append(sum(1 for b in blocks if b >= 0 and allocator.is_idle(b)))
        return Prospect(match.n_tokens, tuple(pins))

    def attach(self, key: bytes, limit: int, namespace: bytes = b"") -> tuple[Holding, int]:
        """A holding that begins with the longest prefix of at most `limit` tokens that is cached in
        the namespace.

        Returns it and how many tokens it has. Raises MemoryLimitError when no slot is left.
        """
        match = self.tree.find(key, limit, namespace) if self.prefix_cache else Match(0)
        self.tree.touch(match)
        slot = self._slot_for(match)
        n_full, n_tail = divmod(match.n_tokens, self.block_tokens)
        holding = Holding([], slot, [0] * len(self.groups), namespace=namespace)
        for group, allocator in enumerate(self.allocators):
            shared = {id(node): node for node in self._shared(match, group)}
            path = match.path[:n_full]
            table = [n.blocks[group] if id(n) in shared else -1 for n in path]
            allocator.share(b for b in table if b >= 0)
            holding.tables.append(table)
            holding.n_trimmed[group] = next((i for i, b in enumerate(table) if b >= 0), n_full)
        if n_tail:
            try:
                self._copy_tail(holding, match)
            except MemoryLimitError:  # the tail is run again
                self.release(holding)
                return self.attach(key, n_full * self.block_tokens, namespace)
            except BaseException:  # the device failed: what is held goes back
                self.release(holding)
                raise
        self.stats.lookups += 1
        self.stats.hits += match.n_tokens > 0
        self.stats.cached_tokens += match.n_tokens
        return holding, match.n_tokens

    def grow(self, holding: Holding, n_tokens: int) -> None:
        """Gives blocks for positions 0 to n_tokens - 1. Raises MemoryLimitError, taking none."""
        n_blocks = self.blocks(n_tokens)
        missing = [n_blocks - len(table) for table in holding.tables]
        if max(missing) <= 0:
            return
        for group, count in enumerate(missing):
            self._reserve(group, max(0, count))
        for allocator, table, count in zip(self.allocators, holding.tables, missing, strict=True):
            table.extend(allocator.acquire(max(0, count)))

    def trim(self, holding: Holding, n_tokens: int) -> None:
        """Gives back blocks that no token behind the first `n_tokens` will attend to."""
        for group, (allocator, g) in enumerate(zip(self.allocators, self.groups, strict=True)):
            if not g.window:
                continue
            table, first = holding.tables[group], holding.n_trimmed[group]
            gone = max(0, n_tokens - g.window + 1) // self.block_tokens - SLACK_BLOCKS
            if gone > first:
                allocator.release(b for b in table[first:gone] if b >= 0)
                table[first:gone] = [-1] * (gone - first)
                holding.n_trimmed[group] = gone

    def commit(self, holding: Holding, key: bytes) -> None:
        """Keeps a prefix that has been run, without the recurrent state behind it."""
        if self.prefix_cache:
            self._keep(holding, key)

    def checkpoint(self, holding: Holding, key: bytes) -> None:
        """Keeps a prefix that has been run, with a copy of the recurrent state behind it."""
        if not self.prefix_cache:
            return
        node, offset = self._keep(holding, key)
        if not self.recurrent or self.tree.has_state(node, offset):
            return
        if self.slots.n_free == 0 and not self.tree.evict_state():
            return
        slot = self.slots.acquire()
        kept = False
        try:
            self.copier.copy_state(holding.slot, slot)
            kept = self.tree.put_state(node, offset, slot)
        finally:
            if not kept:
                self.slots.release(slot)
        self.stats.checkpoints += kept

    def release(self, holding: Holding, key: bytes | None = None) -> None:
        """Takes everything back; with a key (of the tokens that were run) it is kept for others."""
        slot: int | None = holding.slot
        if key and self.prefix_cache:
            node, offset = self._keep(holding, key)
            if self.recurrent and self.tree.put_state(node, offset, holding.slot):
                slot = None
        for allocator, table in zip(self.allocators, holding.tables, strict=True):
            allocator.release(b for b in table if b >= 0)
            table.clear()
        self.tree.generation += 1  # blocks may be idle now
        self.tree.shrink()
        if slot is not None:
            self.slots.release(slot)

    def holding_bytes(self, holding: Holding) -> int:
        """What a copy of it takes."""
        blocks = sum(
            g.block_bytes * sum(b >= 0 for b in table)
            for g, table in zip(self.groups, holding.tables, strict=True)
        )
        return blocks + (self.state_bytes if self.recurrent else 0)

    def swap_out(self, holding: Holding, n_tokens: int) -> Swapped:
        """A copy of what it holds of its first `n_tokens`; it still has to be released."""
        self.stats.swapped_out += 1
        n_table = self.blocks(n_tokens)
        tables = [table[:n_table] for table in holding.tables]
        slot = holding.slot if self.recurrent else None
        return copy_out(self.copier, tables, holding.n_trimmed, n_tokens, slot)

    def swap_in(self, swapped: Swapped, namespace: bytes = b"") -> Holding:
        """A holding like the one that was copied. Raises MemoryLimitError, or what the device
        raises, taking none."""
        slot = self._slot_for(Match(0))
        n_trimmed = list(swapped.n_trimmed)
        holding = Holding([[] for _ in self.groups], slot, n_trimmed, namespace=namespace)
        try:
            for group, (count, blocks) in enumerate(
                zip(swapped.n_blocks, swapped.blocks, strict=True)
            ):
                self._reserve(group, count)
                fresh = iter(self.allocators[group].acquire(count))
                holding.tables[group] = [-1 if block is None else next(fresh) for block in blocks]
            copy_in(self.copier, swapped, holding.tables, slot if self.recurrent else None)
        except BaseException:
            self.release(holding)
            raise
        self.stats.swapped_in += 1
        return holding

    def sole(self, holding: Holding) -> tuple[int, ...]:
        """Blocks of each group that would be available without this sequence."""
        return tuple(
            allocator.n_sole(b for b in table if b >= 0)
            for allocator, table in zip(self.allocators, holding.tables, strict=True)
        )

    def check(self) -> None:
        """Raises AssertionError when anything is held twice or lost; call it when idle."""
        for allocator in self.allocators:
            allocator.check()
        self.slots.check()
        self.tree.check()

    # -- within ---------------------------------------------------------------------------------

    def _keep(self, holding: Holding, key: bytes) -> tuple[Node, int]:
        """Puts what a sequence holds into the tree; returns where it ends there."""
        node, offset = self.tree.insert(key, holding.tables, holding.kept, holding.namespace)
        holding.kept = node if offset == self.block_tokens else node.parent
        return node, offset

    def _shared(self, match: Match, group: int) -> Sequence[Node]:
        """Nodes of a match whose block of a group a sequence would share: whole and in sight."""
        window = self.groups[group].window
        gone = max(0, match.n_tokens - window + 1) // self.block_tokens if window else 0
        return match.path[gone : match.n_tokens // self.block_tokens]

    def _slot_for(self, match: Match) -> int:
        """A slot, with the state of the match in it: a copy, or the checkpoint itself as the last.

        Raises MemoryLimitError when sequences hold every slot.
        """
        full = self.slots.n_free == 0 and not self.tree.evict_state(but=match.state)
        if full and match.state >= 0:
            self.tree.take_state(match.state)
            return match.state
        slot = self.slots.acquire()
        if match.state >= 0:
            try:
                self.copier.copy_state(match.state, slot)
            except BaseException:  # the device failed
                self.slots.release(slot)
                raise
        return slot

    def _copy_tail(self, holding: Holding, match: Match) -> None:
        """Copies the block that a match ends within: its owner may still write behind the match."""
        tail = match.path[-1]
        sources = [block for block in tail.blocks if block >= 0]
        pinned = [g for g, block in enumerate(tail.blocks) if block >= 0]
        for group, block in zip(pinned, sources, strict=True):
            self.allocators[group].share([block])
        try:
            for group in range(len(self.groups)):
                self._reserve(group, 1)
            for group, block in enumerate(tail.blocks):
                (target,) = self.allocators[group].acquire(1)
                holding.tables[group].append(target)
                if block >= 0:
                    self.copier.copy_block(group, block, target)
                    self.stats.copied_blocks += 1
        finally:
            for group, block in zip(pinned, sources, strict=True):
                self.allocators[group].release([block])

    def _reserve(self, group: int, count: int) -> None:
        """Evicts until `count` blocks are free. Raises MemoryLimitError when that cannot be."""
        allocator = self.allocators[group]
        short = count - allocator.n_free
        if short > 0:
            # A few more than needed, so that a growing sequence does not evict at every block.
            spare = min(allocator.n_blocks // 32, max(0, allocator.n_idle - short))
            self.tree.evict_blocks(group, short + spare)
        if count > allocator.n_free:
            raise MemoryLimitError(
                f"cannot hold {count * self.block_tokens} more tokens",
                f"{allocator.n_free} of {allocator.n_blocks} cache blocks are free",
                "wait for another request to finish, or load with a larger context",
            )


def window_blocks(window: int, chunk_tokens: int, block_tokens: int) -> int:
    """The most blocks that a sequence holds in a group of sliding-window layers, in one step."""
    return -(-(window + chunk_tokens) // block_tokens) + SLACK_BLOCKS + 1


def key_of(ids: Sequence[int] | npt.NDArray[np.int32]) -> bytes:
    """Token ids as the prefix tree wants them."""
    return np.asarray(ids, np.int32).tobytes()
