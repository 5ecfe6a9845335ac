"""The prefix cache: a radix tree over token ids whose nodes are cache blocks.

    root ── "You are …" (64 tokens) ── … ┬─ … ── tail (21 tokens)   a node = one block per group
                                         └─ … ── … ── tail (5)      siblings differ in tokens

The tree keeps the blocks of its nodes, so they outlive the sequence that filled them. Full blocks
never change and are shared; a tail is copied by each sequence that continues it. A group of
sliding-window layers has blocks only where the window of an inserted sequence lay, and recurrent
layers have a state only at checkpoints (matching.py finds what is usable). The least recently used
leaves are evicted first.

Each namespace has its own root, so a prompt never matches one of another namespace. All namespaces
share the blocks and slots.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

from zinc.core.rounding import ceil_div
from zinc.kv.blocks import BlockAllocator
from zinc.kv.matching import Match, PrefixMatcher
from zinc.kv.node import ROOT, TOKEN_BYTES, Node, root_digest
from zinc.kv.slots import SlotAllocator


class PrefixTree:
    """Cached prefixes; their data lies in blocks of the allocators (one per group) and in slots.

    windows: sliding window of each group in tokens, 0 for full attention. recurrent: only prefixes
    that end at a checkpoint match. limit_bytes: bound on the kept data, where a block of each group
    counts `block_bytes` and a checkpoint `state_bytes`; None sets no bound.
    """

    def __init__(
        self,
        allocators: Sequence[BlockAllocator],
        slots: SlotAllocator,
        windows: Sequence[int],
        block_tokens: int,
        *,
        recurrent: bool = False,
        block_bytes: Sequence[int] = (),
        state_bytes: int = 0,
        limit_bytes: int | None = None,
    ) -> None:
        self._allocators, self._slots = allocators, slots
        self._windows = windows
        self._matcher = PrefixMatcher(windows, block_tokens, recurrent)
        self.block_tokens = block_tokens
        self._width = block_tokens * TOKEN_BYTES
        self._block_bytes = tuple(block_bytes) or (0,) * len(windows)
        self._state_bytes, self._limit_bytes = state_bytes, limit_bytes
        self._roots: dict[bytes, Node] = {}  # by digest; only roots with children
        self._nodes: dict[Node, None] = {}
        self._states: dict[int, tuple[Node, int]] = {}  # least recently used first
        self._clock = 0
        self.n_bytes = 0
        self.generation = 0  # changes when results of `find` may change
        self._touched: OrderedDict[Node, None] | None = None

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, node: Node) -> bool:
        return node in self._nodes

    def watch(self) -> OrderedDict[Node, None]:
        """Return the queue of nodes that are inserted, used or changed from now on, parents first.

        The caller removes nodes from it. Some may have left the tree in the meantime.
        """
        if self._touched is None:
            self._touched = OrderedDict()
        return self._touched

    def _touch(self, node: Node) -> None:
        if self._touched is not None:
            self._touched[node] = None

    @property
    def n_states(self) -> int:
        return len(self._states)

    # -- lookup -----------------------------------------------------------------------------------

    def root(self, digest: bytes = ROOT) -> Node:
        """Return the root with a digest; it belongs to the tree while it has children."""
        return self._roots.get(digest) or Node(b"", None, [], digest=digest)

    def find(self, key: bytes, limit: int, namespace: bytes = b"") -> Match:
        """Return the longest usable prefix of a key (int32 ids as bytes) in a namespace.

        It has at most `limit` tokens.
        """
        return self._matcher.find(self.root(root_digest(namespace)), key[: limit * TOKEN_BYTES])

    def touch(self, match: Match) -> None:
        """Mark a match as used now."""
        self._clock += 1
        self.generation += 1
        for node in match.path:
            node.last_used = self._clock
        if match.state >= 0:
            self._states[match.state] = self._states.pop(match.state)

    # -- insertion -------------------------------------------------------------------------------

    def insert(
        self,
        key: bytes,
        tables: Sequence[list[int]],
        after: Node | None = None,
        namespace: bytes = b"",
    ) -> tuple[Node, int]:
        """Insert a prefix and keep its blocks; return its last node and the offset in it in tokens.

        tables: block table of each group, -1 where no block is held. If the tree already has a full
        block of the same tokens, the table is changed to share it. after: node of a full block up
        to which the same tables were inserted before; insertion continues from it if the tree still
        has it.
        """
        self._clock += 1
        self.generation += 1
        if after is not None and after in self._nodes:
            node = after
        else:
            node = self.root(root_digest(namespace))
        offset = self.block_tokens if node.depth else 0
        for i in range(node.depth, ceil_div(len(key), self._width)):
            tokens = key[i * self._width : (i + 1) * self._width]
            child = self._child(node, tokens)
            if child is None:
                blocks = [table[i] for table in tables]
                if any(
                    b < 0 and not w for b, w in zip(blocks, self._windows, strict=True)
                ):  # pragma: no cover - a sequence holds all its blocks where no window is
                    break
                child = self._add(node, tokens, blocks)
            elif child.tokens == tokens:
                self._merge(child, [table[i] for table in tables])
                if len(tokens) == self._width:
                    self._share(child, i, tables)
            child.last_used = self._clock
            self._touch(child)
            node, offset = child, len(tokens) // TOKEN_BYTES
        self.shrink()
        return node, offset

    def child(self, parent: Node, tokens: bytes) -> Node | None:
        """Return the child of `parent` (which may be a root) that contains `tokens`, or None."""
        return self._child(parent, tokens)

    def _child(self, node: Node, tokens: bytes) -> Node | None:
        """Return the child whose tokens start with `tokens`; a full block must be equal."""
        if len(tokens) == self._width:
            return node.children.get(tokens)
        return node.extending_child(tokens)

    def _add(self, parent: Node, tokens: bytes, blocks: Sequence[int]) -> Node:
        """Add a node; it replaces a tail whose tokens it extends, and takes over its states."""
        node = Node(tokens, parent, [-1] * len(blocks), self._clock, parent.depth + 1)
        self._nodes[node] = None
        if tail := parent.prefix_child(tokens):
            for offset, slot in list(tail.states.items()):
                self._move_state(slot, node, offset)
            self._remove(tail)
        parent.add(node)
        if parent.parent is None:
            self._roots[parent.digest] = parent
        self._merge(node, blocks)
        return node

    def _merge(self, node: Node, blocks: Sequence[int]) -> None:
        """Keep the given block of each group in which the node has none yet."""
        for group, block in enumerate(blocks):
            if node.blocks[group] < 0 <= block and not self._allocators[group].is_kept(block):
                self._allocators[group].keep(block)
                node.blocks[group] = block
                self.n_bytes += self._block_bytes[group]

    def _share(self, node: Node, i: int, tables: Sequence[list[int]]) -> None:
        """Replace entry `i` of the tables with the node's blocks, which have the same content."""
        for group, table in enumerate(tables):
            mine, kept = table[i], node.blocks[group]
            if mine >= 0 and kept >= 0 and mine != kept:
                self._allocators[group].share([kept])
                self._allocators[group].release([mine])
                table[i] = kept

    def restore(self, parent: Node, tokens: bytes, blocks: Sequence[int]) -> Node | None:
        """Insert a node that was read from disk; the caller holds its blocks (-1 for none).

        Returns None, and keeps nothing, if the tree already has the text.
        """
        if not 0 < len(tokens) <= self._width or self._child(parent, tokens) is not None:
            return None
        self._clock += 1
        self.generation += 1
        return self._add(parent, tokens, blocks)

    def put_state(self, node: Node, offset: int, slot: int) -> bool:
        """Keep a checkpoint after `offset` tokens of a node.

        Returns False, and leaves the slot to the caller, if there is one already or the node has
        left the tree.
        """
        if offset == 0 or offset in node.states or node not in self._nodes:
            return False
        node.states[offset] = slot
        self._states[slot] = (node, offset)
        self.n_bytes += self._state_bytes
        self.generation += 1
        self._touch(node)
        self.shrink(except_slot=slot)
        return True

    def has_state(self, node: Node, offset: int) -> bool:
        """Return whether a node has a checkpoint after `offset` of its tokens."""
        return offset in node.states

    def _move_state(self, slot: int, node: Node, offset: int) -> None:
        old, old_offset = self._states[slot]
        del old.states[old_offset]
        if offset in node.states:  # pragma: no cover - a new node has none
            self._drop_state(slot)
            return
        node.states[offset] = slot
        self._states[slot] = (node, offset)

    # -- eviction -------------------------------------------------------------------------------

    def evict_blocks(self, group: int, count: int) -> int:
        """Free up to `count` idle blocks of a group; return the number of freed blocks."""
        if self._windows[group]:
            return self._evict_windows(group, count)
        freed = 0
        for node in self._leaves():
            if freed >= count:
                break
            freed += self._allocators[group].is_idle(node.blocks[group])
            self._remove(node)
        return freed

    def _evict_windows(self, group: int, count: int) -> int:
        """Evict single blocks of a sliding-window group; their nodes stay for the other groups."""
        allocator, freed = self._allocators[group], 0
        nodes = [n for n in self._nodes if n.blocks[group] >= 0]
        for node in sorted(nodes, key=lambda n: n.last_used):
            if freed >= count:
                break
            if allocator.is_idle(node.blocks[group]):
                self._drop_block(node, group)
                freed += 1
                self._prune(node)
        return freed

    def _prune(self, node: Node) -> None:
        """Remove a node that keeps no data, and its ancestors that then keep none either."""
        while not node.children and not node.states and max(node.blocks, default=0) < 0:
            parent = node.parent
            self._remove(node)
            if parent is None or parent.parent is None:
                return
            node = parent

    def take_state(self, slot: int) -> None:
        """Remove a checkpoint and leave its slot to the caller."""
        node, offset = self._states.pop(slot)
        del node.states[offset]
        self.n_bytes -= self._state_bytes
        self.generation += 1

    def evict_state(self, except_slot: int = -1) -> bool:
        """Free the slot of the least recently used checkpoint; return whether there was one.

        except_slot: slot of a checkpoint to leave alone.
        """
        slot = next((s for s in self._states if s != except_slot), None)
        if slot is None:
            return False
        self._drop_state(slot)
        return True

    def clear(self) -> None:
        """Evict everything that no sequence holds."""
        for group in range(len(self._windows)):
            self.evict_blocks(group, self._allocators[group].n_blocks)
        while self.evict_state():
            pass

    def _leaves(self) -> Iterator[Node]:
        """Yield leaves whose blocks no sequence holds, the least recently used first.

        The caller removes each leaf before it asks for the next, so that parents become leaves in
        turn. Every idle block of full attention is reached: a sequence that holds a block also
        holds all blocks before it.
        """
        heap = [(n.last_used, i, n) for i, n in enumerate(self._nodes) if self._is_leaf(n)]
        heapq.heapify(heap)
        order = len(self._nodes)
        while heap:
            _, _, node = heapq.heappop(heap)
            parent = node.parent
            yield node
            if parent and parent.parent is not None and self._is_leaf(parent):
                order += 1
                heapq.heappush(heap, (parent.last_used, order, parent))

    def _is_leaf(self, node: Node) -> bool:
        """Return whether a node may be removed: it has no children, and no sequence its blocks."""
        return not node.children and all(
            block < 0 or a.is_idle(block)
            for a, block in zip(self._allocators, node.blocks, strict=True)
        )

    def _remove(self, node: Node) -> None:
        """Remove a node from the tree, with its blocks and states."""
        for group in range(len(node.blocks)):
            self._drop_block(node, group)
        for slot in list(node.states.values()):
            self._drop_state(slot)
        assert node.parent is not None
        node.parent.remove(node)
        if node.parent.parent is None and not node.parent.children:
            del self._roots[node.parent.digest]
        del self._nodes[node]
        self.generation += 1

    def _drop_block(self, node: Node, group: int) -> None:
        if node.blocks[group] >= 0:
            self._allocators[group].drop(node.blocks[group])
            node.blocks[group] = -1
            self.n_bytes -= self._block_bytes[group]
            self.generation += 1

    def _drop_state(self, slot: int) -> None:
        self.take_state(slot)
        self._slots.release(slot)

    def shrink(self, except_slot: int = -1) -> None:
        """Evict until the limit is met, or sequences hold the rest.

        except_slot: slot of a checkpoint to leave alone.
        """
        if self._limit_bytes is None or self.n_bytes <= self._limit_bytes:
            return
        for node in self._leaves():
            if except_slot not in node.states.values():
                self._remove(node)
            else:
                break
            if self.n_bytes <= self._limit_bytes:
                return
        while self.n_bytes > self._limit_bytes and self.evict_state(except_slot):
            pass

    # -- inspection -----------------------------------------------------------------------------

    def walk(self, visit: Callable[[Node, bytes], None]) -> None:
        """Call `visit` with every node and the key up to its end, parents first."""
        stack = [(c, c.tokens) for root in self._roots.values() for c in root.children.values()]
        while stack:
            node, key = stack.pop()
            visit(node, key)
            stack.extend((child, key + child.tokens) for child in node.children.values())

    def check(self) -> None:
        """Raise AssertionError if nodes, allocators and slots disagree."""
        seen: dict[Node, None] = {}
        kept: list[set[int]] = [set() for _ in self._allocators]

        def visit(node: Node, key: bytes) -> None:
            seen[node] = None
            assert 0 < len(node.tokens) <= self._width
            assert node.sorted_tokens == sorted(node.children), "children are out of order"
            for group, block in enumerate(node.blocks):
                if block >= 0:
                    assert block not in kept[group], f"block {block} is kept twice"
                    kept[group].add(block)
            for offset, slot in node.states.items():
                assert self._states[slot] == (node, offset), "a checkpoint is lost"
                assert 0 < offset <= node.n_tokens

        self.walk(visit)
        assert seen.keys() == self._nodes.keys(), "a node is lost"
        assert all(root.children for root in self._roots.values()), "a root is left over"
        assert sum(len(n.states) for n in seen) == len(self._states), "a checkpoint is lost"
        for allocator, blocks in zip(self._allocators, kept, strict=True):
            assert blocks == {b for b in range(allocator.n_blocks) if allocator.is_kept(b)}
        sizes = sum(len(k) * size for k, size in zip(kept, self._block_bytes, strict=True))
        assert self.n_bytes == sizes + len(self._states) * self._state_bytes
