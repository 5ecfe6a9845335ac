"""A node of the prefix tree, and which of its children share most with a text.

Thousands of conversations may begin alike and part in one block, so children are kept in order:
what shares most with a text stands beside the place that it would have.
"""

from __future__ import annotations

import hashlib
import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

TOKEN_BYTES = 4
# Names the empty text, of requests without a namespace.
ROOT = bytes(16)


def root_digest(namespace: bytes) -> bytes:
    """Return what names the empty text of a namespace.

    Prompts of different namespaces share nothing in the prefix cache, in memory or on disk.
    """
    if not namespace:
        return ROOT
    return hashlib.blake2b(namespace, digest_size=len(ROOT), person=b"zinc namespace").digest()


@dataclass(slots=True, eq=False)
class Node:
    """One block of tokens behind its parent's, or fewer: the tail of a text.

    blocks: one a group, -1 where none is kept; depth: blocks from the root to its end. children:
    by their tokens; order: these tokens, sorted, so that those that begin alike are neighbours.
    states: slot of the recurrent state behind so many tokens of the node (1 to its length). digest:
    names the text up to its end, once zinc.kv.disk has asked for it; that of a root always.
    """

    tokens: bytes
    parent: Node | None
    blocks: list[int]
    used: int = 0
    depth: int = 0
    children: dict[bytes, Node] = field(default_factory=dict)
    order: list[bytes] = field(default_factory=list)
    states: dict[int, int] = field(default_factory=dict)
    digest: bytes = b""

    @property
    def n_tokens(self) -> int:
        return len(self.tokens) // TOKEN_BYTES

    def add(self, child: Node) -> None:
        self.children[child.tokens] = child
        insort(self.order, child.tokens)

    def remove(self, child: Node) -> None:
        del self.children[child.tokens]
        del self.order[bisect_left(self.order, child.tokens)]

    def starting(self, tokens: bytes) -> Node | None:
        """A child that has all of `tokens`."""
        at = bisect_left(self.order, tokens)
        found = at < len(self.order) and self.order[at].startswith(tokens)
        return self.children[self.order[at]] if found else None

    def tail_of(self, tokens: bytes) -> Node | None:
        """The child whose tokens `tokens` begin with and go on. There is one at most."""
        at = bisect_left(self.order, tokens) - 1
        found = at >= 0 and tokens.startswith(self.order[at])
        return self.children[self.order[at]] if found else None

    def alike(self, tokens: bytes) -> Iterator[tuple[Node, int]]:
        """Children that begin as `tokens` do, and for how many: the longest first."""
        at = bisect_left(self.order, tokens)
        # What two of them share can only shrink with their distance in the order.
        sides = map(self._shared, (reversed(self.order[:at]), self.order[at:]), (tokens, tokens))
        for n, each in heapq.merge(*sides, key=lambda pair: -pair[0]):
            yield self.children[each], n

    @staticmethod
    def _shared(order: Iterable[bytes], tokens: bytes) -> Iterator[tuple[int, bytes]]:
        for each in order:
            if (n := common_tokens(each, tokens)) == 0:
                return
            yield n, each


def common_tokens(a: bytes, b: bytes) -> int:
    """Tokens that two runs of ids begin with alike."""
    n = min(len(a), len(b))
    if a[:TOKEN_BYTES] != b[:TOKEN_BYTES]:
        return 0
    if a[:n] == b[:n]:
        return n // TOKEN_BYTES
    left, right = np.frombuffer(a[:n], np.int32), np.frombuffer(b[:n], np.int32)
    return int((left != right).argmax())
