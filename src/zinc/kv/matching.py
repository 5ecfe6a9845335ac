"""Longest usable prefix of a prompt in the prefix tree.

A prefix is usable if the cache holds everything that the next token needs: all blocks of full
attention, those blocks of a sliding window that the window still covers, and for recurrent layers a
checkpoint exactly at its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from zinc.core.dataclass import dataclass
from zinc.core.rounding import ceil_div
from zinc.kv.node import TOKEN_BYTES, Node


@dataclass(frozen=True, slots=True)
class Match:
    """A usable prefix of `n_tokens` whose blocks are those of `path`.

    state: slot of the checkpoint at its end, -1 without recurrent layers.
    """

    n_tokens: int
    path: tuple[Node, ...] = ()
    state: int = -1


class PrefixMatcher:
    """A search for the longest cached prefix of a prompt below a root.

    windows: sliding window of each group in tokens, 0 for full attention. recurrent: the model has
    recurrent layers, so a prefix must end at a checkpoint.
    """

    def __init__(self, windows: Sequence[int], block_tokens: int, recurrent: bool) -> None:
        self._windows, self._block_tokens = windows, block_tokens
        self._recurrent = recurrent

    def find(self, root: Node, key: bytes) -> Match:
        """Return the longest usable prefix of a key (int32 ids as bytes)."""
        width = self._block_tokens * TOKEN_BYTES
        path: list[Node] = []
        node = root
        for start in range(0, len(key) - width + 1, width):
            child = node.children.get(key[start : start + width])
            if child is None:
                break
            path.append(child)
            node = child
        best = self._longest(path, len(path) * self._block_tokens)
        # Besides this path, other children may share part of the next block, each with its own
        # checkpoints and window blocks. So a text that diverges earlier may still match further.
        for depth in reversed(range(len(path) + 1)):
            start = depth * self._block_tokens
            if depth < len(path) and (
                not self._recurrent or best.n_tokens >= start + self._block_tokens
            ):
                break
            rest = key[depth * width : (depth + 1) * width]
            for child, n in self._branches(path[depth - 1] if depth else root, rest):
                if start + n > best.n_tokens:
                    match = self._longest([*path[:depth], child], start + n)
                    best = max(best, match, key=lambda m: m.n_tokens)
                elif not self._recurrent:
                    break
        return best

    def _branches(self, parent: Node, rest: bytes) -> Iterator[tuple[Node, int]]:
        """Yield children with a common prefix with `rest`, and its length in tokens.

        The longest come first; with recurrent layers, the order is arbitrary and each prefix ends
        at a checkpoint.
        """
        if not self._recurrent:
            yield from parent.sharing(rest)
            return
        for tokens, child in parent.children.items():
            for offset in child.states:
                if rest.startswith(tokens[: offset * TOKEN_BYTES]):
                    yield child, offset

    def _longest(self, path: Sequence[Node], total: int) -> Match:
        """Return the longest usable prefix of at most `total` tokens along a path."""
        for n_tokens, state in self._ends(path, total):
            if self._has_windows(path, n_tokens):
                n_nodes = ceil_div(n_tokens, self._block_tokens)
                return Match(n_tokens, tuple(path[:n_nodes]), state)
        return Match(0)

    def _ends(self, path: Sequence[Node], total: int) -> Iterator[tuple[int, int]]:
        """Yield (tokens, state slot) where a prefix along a path may end, the longest first."""
        if not self._recurrent:
            if total:
                yield total, -1
            for i in reversed(range(1, len(path))):
                yield i * self._block_tokens, -1
            return
        for i in reversed(range(len(path))):
            start = i * self._block_tokens
            for offset in sorted(path[i].states, reverse=True):
                if start + offset <= total:
                    yield start + offset, path[i].states[offset]

    def _has_windows(self, path: Sequence[Node], n_tokens: int) -> bool:
        """Return whether `path` has the blocks that sliding windows see after `n_tokens` tokens."""
        for group, window in enumerate(self._windows):
            if window:
                first = max(0, n_tokens - window + 1) // self._block_tokens
                last = ceil_div(n_tokens, self._block_tokens)
                if any(node.blocks[group] < 0 for node in path[first:last]):
                    return False
        return True
