"""The prefix cache: a radix tree over token ids whose nodes are cache blocks.

    root ── "You are …" (64 tokens) ── … ┬─ … ── tail (21 tokens)      a node = one block a group
                                         └─ … ── … ── tail (5)         children differ in tokens

A node keeps its blocks in the allocators, so that they outlive the sequence that filled them. Full
blocks never change and are shared; the tail of a conversation may be found by several, and each
copies it. A group of sliding-window layers has blocks only where the window lay when a sequence
was put in; a recurrent layer has its state only at checkpoints. What a match may use is therefore
the longest prefix for which everything is there. Least recently used leaves go first.

Each namespace has a root of its own, so a prompt never finds what another namespace ran. Blocks and
slots are shared by all of them.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from zinc.kv.blocks import BlockAllocator
from zinc.kv.node import ROOT, TOKEN_BYTES, Node, root_digest
from zinc.kv.slots import SlotAllocator


@dataclass(frozen=True, slots=True)
class Match:
    """A usable prefix of `n_tokens`, in the blocks of `path`; `state` is a slot, or -1."""

    n_tokens: int
    path: tuple[Node, ...] = ()
    state: int = -1


class PrefixTree:
    """Prefixes that were run, in blocks of the allocators (one a group) and slots.

    windows: of each group, 0 when it keeps every position. With `recurrent`, only prefixes that end
    at a checkpoint match. limit_bytes bounds what is kept, counted by `block_bytes` of each group
    and `state_bytes`.
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
        self._windows, self._recurrent = windows, recurrent
        self.block_tokens = block_tokens
        self._width = block_tokens * TOKEN_BYTES
        self._block_bytes = tuple(block_bytes) or (0,) * len(windows)
        self._state_bytes, self._limit_bytes = state_bytes, limit_bytes
        self._roots: dict[bytes, Node] = {}  # by digest; those that have children
        self._nodes: dict[Node, None] = {}
        self._states: dict[int, tuple[Node, int]] = {}  # least recently used first
        self._clock = 0
        self.n_bytes = 0
        self.generation = 0  # changes when the answer of `find` may change
        self._touched: OrderedDict[Node, None] | None = None

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, node: Node) -> bool:
        return node in self._nodes

    def watch(self) -> OrderedDict[Node, None]:
        """Nodes that were put in, used again or changed, parents first; the caller takes them out.

        Some of them may have left the tree by then.
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

    # -- looking up -----------------------------------------------------------------------------

    def root(self, digest: bytes = ROOT) -> Node:
        """Return the root that `digest` names; it stays in the tree while it has children."""
        return self._roots.get(digest) or Node(b"", None, [], digest=digest)

    def find(self, key: bytes, limit: int, namespace: bytes = b"") -> Match:
        """Return the longest usable prefix of a key (int32 ids as bytes) in a namespace.

        It has at most `limit` tokens.
        """
        key = key[: limit * TOKEN_BYTES]
        path: list[Node] = []
        node = root = self.root(root_digest(namespace))
        for at in range(0, len(key) - self._width + 1, self._width):
            child = node.children.get(key[at : at + self._width])
            if child is None:
                break
            path.append(child)
            node = child
        best = self._longest(path, len(path) * self.block_tokens)
        # Others may begin like the next block, each with a checkpoint or window of its own; and a
        # checkpoint of a text that went another way from a block on may be further than ours.
        for depth in reversed(range(len(path) + 1)):
            start = depth * self.block_tokens
            if depth < len(path) and (
                not self._recurrent or best.n_tokens >= start + self.block_tokens
            ):
                break
            rest = key[depth * self._width : (depth + 1) * self._width]
            for child, n in self._branches(path[depth - 1] if depth else root, rest):
                if start + n > best.n_tokens:
                    match = self._longest([*path[:depth], child], start + n)
                    best = max(best, match, key=lambda m: m.n_tokens)
                elif not self._recurrent:
                    break
        return best

    def _branches(self, parent: Node, rest: bytes) -> Iterator[tuple[Node, int]]:
        """Children that may lengthen a match by so many tokens: in any order with `recurrent`, when
        these end at a checkpoint; else the longest first."""
        if not self._recurrent:
            yield from parent.alike(rest)
            return
        for tokens, child in parent.children.items():
            for offset in child.states:
                if rest.startswith(tokens[: offset * TOKEN_BYTES]):
                    yield child, offset

    def _longest(self, path: Sequence[Node], total: int) -> Match:
        """The longest prefix of at most `total` tokens along a path that has all it needs."""
        for n_tokens, state in self._ends(path, total):
            if self._has_windows(path, n_tokens):
                n_nodes = -(-n_tokens // self.block_tokens)
                return Match(n_tokens, tuple(path[:n_nodes]), state)
        return Match(0)

    def _ends(self, path: Sequence[Node], total: int) -> Iterator[tuple[int, int]]:
        """(tokens, state slot) at which a match along a path may end, the longest first."""
        if not self._recurrent:
            if total:
                yield total, -1
            for i in reversed(range(1, len(path))):
                yield i * self.block_tokens, -1
            return
        for i in reversed(range(len(path))):
            start = i * self.block_tokens
            for offset in sorted(path[i].states, reverse=True):
                if start + offset <= total:
                    yield start + offset, path[i].states[offset]

    def _has_windows(self, path: Sequence[Node], n_tokens: int) -> bool:
        """Whether every window still holds what the token behind a prefix attends to."""
        for group, window in enumerate(self._windows):
            if window:
                first = max(0, n_tokens - window + 1) // self.block_tokens
                last = -(-n_tokens // self.block_tokens)
                if any(node.blocks[group] < 0 for node in path[first:last]):
                    return False
        return True

    def touch(self, match: Match) -> None:
        """Marks a match as used now."""
        self._clock += 1
        self.generation += 1
        for node in match.path:
            node.used = self._clock
        if match.state >= 0:
            self._states[match.state] = self._states.pop(match.state)

    # -- putting in -----------------------------------------------------------------------------

    def insert(
        self,
        key: bytes,
        tables: Sequence[list[int]],
        after: Node | None = None,
        namespace: bytes = b"",
    ) -> tuple[Node, int]:
        """Keeps the blocks of a prefix; returns the node it ends in, and how many tokens into it.

        tables: block table of each group, -1 where no block is held. Where the tree has a full
        block of the same tokens already, the table is changed to share that one. after: a node of
        a whole block that the same tables were put in up to; if it is still there, what is before
        it is not looked at again.
        """
        self._clock += 1
        self.generation += 1
        if after is not None and after in self._nodes:
            node = after
        else:
            node = self.root(root_digest(namespace))
        offset = self.block_tokens if node.depth else 0
        for i in range(node.depth, -(-len(key) // self._width)):
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
            child.used = self._clock
            self._touch(child)
            node, offset = child, len(tokens) // TOKEN_BYTES
        self.shrink()
        return node, offset

    def child(self, parent: Node, tokens: bytes) -> Node | None:
        """Return the node behind a parent, which may be a root, that has all of `tokens`."""
        return self._child(parent, tokens)

    def _child(self, node: Node, tokens: bytes) -> Node | None:
        """The child that has all of `tokens`; shorter tails of the same text end in it."""
        if len(tokens) == self._width:
            return node.children.get(tokens)
        return node.starting(tokens)

    def _add(self, parent: Node, tokens: bytes, blocks: Sequence[int]) -> Node:
        node = Node(tokens, parent, [-1] * len(blocks), self._clock, parent.depth + 1)
        self._nodes[node] = None
        if tail := parent.tail_of(tokens):
            for offset, slot in list(tail.states.items()):
                self._move_state(slot, node, offset)
            self._remove(tail)
        parent.add(node)
        if parent.parent is None:
            self._roots[parent.digest] = parent
        self._merge(node, blocks)
        return node

    def _merge(self, node: Node, blocks: Sequence[int]) -> None:
        """Keeps blocks of a sequence where the node, of the same tokens, has none."""
        for group, block in enumerate(blocks):
            if node.blocks[group] < 0 <= block and not self._allocators[group].is_kept(block):
                self._allocators[group].keep(block)
                node.blocks[group] = block
                self.n_bytes += self._block_bytes[group]

    def _share(self, node: Node, i: int, tables: Sequence[list[int]]) -> None:
        for group, table in enumerate(tables):
            mine, kept = table[i], node.blocks[group]
            if mine >= 0 and kept >= 0 and mine != kept:
                self._allocators[group].share([kept])
                self._allocators[group].release([mine])
                table[i] = kept

    def restore(self, parent: Node, tokens: bytes, blocks: Sequence[int]) -> Node | None:
        """Puts in a node as it was, with blocks (-1 for none) that the caller holds.

        Returns None, keeping nothing, when the text is there already.
        """
        if not 0 < len(tokens) <= self._width or self._child(parent, tokens) is not None:
            return None
        self._clock += 1
        self.generation += 1
        return self._add(parent, tokens, blocks)

    def put_state(self, node: Node, offset: int, slot: int) -> bool:
        """Keeps a checkpoint; False when there is one, or no place: the slot stays the caller's."""
        if offset == 0 or offset in node.states or node not in self._nodes:
            return False
        node.states[offset] = slot
        self._states[slot] = (node, offset)
        self.n_bytes += self._state_bytes
        self.generation += 1
        self._touch(node)
        self.shrink(but=slot)
        return True

    def has_state(self, node: Node, offset: int) -> bool:
        return offset in node.states

    def _move_state(self, slot: int, node: Node, offset: int) -> None:
        old, old_offset = self._states[slot]
        del old.states[old_offset]
        if offset in node.states:  # pragma: no cover - a new node has none
            self._drop_state(slot)
            return
        node.states[offset] = slot
        self._states[slot] = (node, offset)

    # -- letting go -----------------------------------------------------------------------------

    def evict_blocks(self, group: int, count: int) -> int:
        """Frees `count` idle blocks of a group, or as many as there are; returns how many."""
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
        """Windows are given up one by one, wherever they lie; the rest of the node stays."""
        allocator, freed = self._allocators[group], 0
        nodes = [n for n in self._nodes if n.blocks[group] >= 0]
        for node in sorted(nodes, key=lambda n: n.used):
            if freed >= count:
                break
            if allocator.is_idle(node.blocks[group]):
                self._drop_block(node, group)
                freed += 1
                self._prune(node)
        return freed

    def _prune(self, node: Node) -> None:
        """Removes a node that keeps nothing, and what leads to it alone."""
        while not node.children and not node.states and max(node.blocks, default=0) < 0:
            parent = node.parent
            self._remove(node)
            if parent is None or parent.parent is None:
                return
            node = parent

    def take_state(self, slot: int) -> None:
        """Gives a checkpoint's slot to the caller."""
        node, offset = self._states.pop(slot)
        del node.states[offset]
        self.n_bytes -= self._state_bytes
        self.generation += 1

    def evict_state(self, but: int = -1) -> bool:
        """Frees the slot of the checkpoint that was not used for longest, if there is one."""
        slot = next((s for s in self._states if s != but), None)
        if slot is None:
            return False
        self._drop_state(slot)
        return True

    def clear(self) -> None:
        """Lets go of everything that no sequence holds."""
        for group in range(len(self._windows)):
            self.evict_blocks(group, self._allocators[group].n_blocks)
        while self.evict_state():
            pass

    def _leaves(self) -> Iterator[Node]:
        """Leaves whose blocks no sequence holds, least recently used first; then their parents.

        The caller removes each before it asks for the next. A sequence that holds a block holds
        all before it where nothing slides, so every idle block can be reached from a leaf.
        """
        heap = [(n.used, i, n) for i, n in enumerate(self._nodes) if self._is_leaf(n)]
        heapq.heapify(heap)
        order = len(self._nodes)
        while heap:
            _, _, node = heapq.heappop(heap)
            parent = node.parent
            yield node
            if parent and parent.parent is not None and self._is_leaf(parent):
                order += 1
                heapq.heappush(heap, (parent.used, order, parent))

    def _is_leaf(self, node: Node) -> bool:
        """Whether a node may be removed: nothing hangs on it, and no sequence holds its blocks."""
        return not node.children and all(
            block < 0 or a.is_idle(block)
            for a, block in zip(self._allocators, node.blocks, strict=True)
        )

    def _remove(self, node: Node) -> None:
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

    def shrink(self, but: int = -1) -> None:
        """Lets go of what is over the limit and no sequence holds, but not of state slot `but`."""
        if self._limit_bytes is None or self.n_bytes <= self._limit_bytes:
            return
        for node in self._leaves():
            if but not in node.states.values():
                self._remove(node)
            else:
                break
            if self.n_bytes <= self._limit_bytes:
                return
        while self.n_bytes > self._limit_bytes and self.evict_state(but):
            pass

    # -- looking after --------------------------------------------------------------------------

    def walk(self, visit: Callable[[Node, bytes], None]) -> None:
        """Calls `visit` with every node and the key up to its end, parents first."""
        stack = [(c, c.tokens) for root in self._roots.values() for c in root.children.values()]
        while stack:
            node, key = stack.pop()
            visit(node, key)
            stack.extend((child, key + child.tokens) for child in node.children.values())

    def check(self) -> None:
        """Raises AssertionError when nodes, allocators and slots disagree."""
        seen: dict[Node, None] = {}
        kept: list[set[int]] = [set() for _ in self._allocators]

        def visit(node: Node, key: bytes) -> None:
            seen[node] = None
            assert 0 < len(node.tokens) <= self._width
            assert node.order == sorted(node.children), "children are out of order"
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
