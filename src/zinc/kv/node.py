"""Nodes of the prefix tree.

Thousands of conversations may share a prefix and diverge within one block, so a node keeps its
children's tokens sorted. The children with the longest common prefix with some tokens then stand
next to the position where these tokens would be inserted.
"""

from __future__ import annotations

import hashlib
import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import field

import numpy as np

from zinc.core.dataclass import dataclass

TOKEN_BYTES = 4
# Digest of the empty text in the default namespace.
ROOT = bytes(16)


def root_digest(namespace: bytes) -> bytes:
    """Return the digest of the empty text in a namespace.

    Prompts in different namespaces have different digests, so they share nothing in the prefix
    cache, in memory or on disk.
    """
    if not namespace:
        return ROOT
    return hashlib.blake2b(namespace, digest_size=len(ROOT), person=b"zinc namespace").digest()


def text_digest(parent: bytes, tokens: bytes) -> bytes:
    """Return the digest of a text: a hash of the digest before its last block, and that block."""
    return hashlib.blake2b(parent + tokens, digest_size=len(ROOT)).digest()


@dataclass(slots=True, eq=False)
class Node:
    """One block of tokens after those of its parent; a tail has fewer tokens than a block.

    tokens: int32 ids as bytes. blocks: the block of each group, -1 if none is kept. last_used: time
    of last use on the tree's clock. depth: number of nodes from the root to this one. children: by
    their tokens; sorted_tokens: the same tokens, sorted. states: maps a number of tokens of this
    node to the slot of the recurrent state after them. digest: of the text up to the end of the
    node; `digest_of` computes it on demand, a root has it from the start.
    """

    tokens: bytes
    parent: Node | None
    blocks: list[int]
    last_used: int = 0
    depth: int = 0
    children: dict[bytes, Node] = field(default_factory=dict)
    sorted_tokens: list[bytes] = field(default_factory=list)
    states: dict[int, int] = field(default_factory=dict)
    digest: bytes = b""

    @property
    def n_tokens(self) -> int:
        return len(self.tokens) // TOKEN_BYTES

    def add(self, child: Node) -> None:
        """Add a child."""
        self.children[child.tokens] = child
        insort(self.sorted_tokens, child.tokens)

    def remove(self, child: Node) -> None:
        """Remove a child."""
        del self.children[child.tokens]
        del self.sorted_tokens[bisect_left(self.sorted_tokens, child.tokens)]

    def extending_child(self, tokens: bytes) -> Node | None:
        """Return a child whose tokens start with `tokens`, or None."""
        at = bisect_left(self.sorted_tokens, tokens)
        found = at < len(self.sorted_tokens) and self.sorted_tokens[at].startswith(tokens)
        return self.children[self.sorted_tokens[at]] if found else None

    def prefix_child(self, tokens: bytes) -> Node | None:
        """Return the child whose tokens are a proper prefix of `tokens`, or None."""
        at = bisect_left(self.sorted_tokens, tokens) - 1
        found = at >= 0 and tokens.startswith(self.sorted_tokens[at])
        return self.children[self.sorted_tokens[at]] if found else None

    def sharing(self, tokens: bytes) -> Iterator[tuple[Node, int]]:
        """Yield children with a common prefix with `tokens` and its length, the longest first."""
        at = bisect_left(self.sorted_tokens, tokens)
        # In sorted order, common prefixes only get shorter with distance.
        sides = map(
            self._shared,
            (reversed(self.sorted_tokens[:at]), self.sorted_tokens[at:]),
            (tokens, tokens),
        )
        for n, each in heapq.merge(*sides, key=lambda pair: -pair[0]):
            yield self.children[each], n

    @staticmethod
    def _shared(order: Iterable[bytes], tokens: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the length of the common prefix with each of `order`, until there is none."""
        for each in order:
            if (n := common_tokens(each, tokens)) == 0:
                return
            yield n, each


def digest_of(node: Node | None) -> bytes:
    """Return the digest of the text up to the end of a node."""
    path: list[Node] = []
    while node is not None and node.parent is not None and not node.digest:
        path.append(node)
        node = node.parent
    digest = (node.digest if node is not None else b"") or ROOT
    for below in reversed(path):
        digest = below.digest = text_digest(digest, below.tokens)
    return digest


def common_tokens(a: bytes, b: bytes) -> int:
    """Return the number of tokens in the common prefix of two keys (int32 ids as bytes)."""
    n = min(len(a), len(b))
    if a[:TOKEN_BYTES] != b[:TOKEN_BYTES]:
        return 0
    if a[:n] == b[:n]:
        return n // TOKEN_BYTES
    left, right = np.frombuffer(a[:n], np.int32), np.frombuffer(b[:n], np.int32)
    return int((left != right).argmax())
