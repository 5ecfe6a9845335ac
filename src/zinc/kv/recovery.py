"""What the files of a prefix cache bring back: the whole ones, as far as there is room.

Files are listed, connected (a block is of use behind its parents only), chosen by how lately they
were used, and read into memory. Whatever is damaged, foreign or left without its parents is removed
with a warning or without: nothing in a file is believed before its checksum agrees.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BufferedReader
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt

from zinc.core.errors import MemoryLimitError
from zinc.kv import piece
from zinc.kv.node import ROOT, TOKEN_BYTES, Node
from zinc.kv.piece import BLOCK, STATE, DamagedError, Head
from zinc.kv.pool import CachePool

log = logging.getLogger("zinc.cache")

# A file that was never given its name is somebody's who died, after so long.
TEMPORARY_AGE_NS = 3600 * 10**9


@dataclass(frozen=True, slots=True)
class File:
    """A file that is whole as far as its head tells. size: bytes of its data."""

    size: int
    head: Head


class Recovery:
    """Brings a folder's files of one `key` back into a pool."""

    def __init__(self, folder: Path, key: str, pool: CachePool) -> None:
        self._folder, self._key, self._pool = folder, key, pool

    def run(self) -> tuple[dict[str, File], int]:
        """The files that are there to stay, least recently used first, and the tokens restored."""
        found = self._index()
        restored: dict[bytes, Node] = {}
        n_tokens, pool = 0, self._pool
        for name in self._choose(found):
            head = found[name].head
            is_first = head.is_first
            parent = pool.tree.root(head.parent) if is_first else restored.get(head.parent)
            if parent is None:
                continue  # it was damaged
            try:
                with (self._folder / name).open("rb") as file:
                    piece.read_head(file, self._key)
                    if head.is_state:
                        self._restore_state(file, head, parent)
                        continue
                    node = self._restore(file, head, parent)
            except (OSError, DamagedError) as error:
                self._ignore(name, error)
                del found[name]
                continue
            except MemoryLimitError:
                break
            if node is not None:
                restored[piece.chain(head.parent, head.tokens)] = node
                n_tokens += node.n_tokens
        return found, n_tokens

    def _index(self) -> dict[str, File]:
        """The files that hang together, least recently used first; others are removed."""
        times: list[tuple[int, str]] = []
        long_ago = time.time_ns() - TEMPORARY_AGE_NS
        try:
            for entry in os.scandir(self._folder):
                changed = entry.stat().st_mtime_ns
                if entry.name.endswith((BLOCK, STATE)):
                    times.append((changed, entry.name))
                elif entry.name.startswith(piece.TEMPORARY) and changed < long_ago:
                    os.unlink(entry.path)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                log.warning("the prefix cache in %s cannot be read: %s", self._folder, error)
        found: dict[str, File] = {}
        for _, name in sorted(times):
            try:
                found[name] = self._open(name)
            except (OSError, DamagedError) as error:
                self._ignore(name, error)
        return self._connected(found)

    def _open(self, name: str) -> File:
        with (self._folder / name).open("rb") as file:
            head = piece.read_head(file, self._key)
            size = os.fstat(file.fileno()).st_size - file.tell()
        pool = self._pool
        count, rest = divmod(len(head.tokens), TOKEN_BYTES)
        fits = (
            head.name == name
            and len(head.parent) == len(ROOT)
            and rest == 0
            and 0 < count <= pool.block_tokens
            and head.groups == tuple(sorted(set(head.groups) & set(range(len(pool.groups)))))
            and (pool.recurrent or not head.is_state)
            and (
                head.is_state
                or all(g in head.groups for g, group in enumerate(pool.groups) if not group.window)
            )
        )
        if not fits:
            raise DamagedError("its head contradicts the model")
        return File(size, head)

    def _connected(self, found: dict[str, File]) -> dict[str, File]:
        """Those that can be reached from the beginning of a text."""
        reached: dict[bytes, bool] = {}

        def reaches(head: Head) -> bool:
            path = []
            while not head.is_first and head.parent not in reached:
                path.append(head.parent)
                above = found.get(head.parent.hex() + BLOCK)
                if above is None:
                    break
                head = above.head
            answer = head.is_first or reached.get(head.parent, False)
            reached.update(dict.fromkeys(path, answer))
            return answer

        kept = {name: file for name, file in found.items() if reaches(file.head)}
        for name in found.keys() - kept.keys():
            self._remove(name)
        return kept

    def _choose(self, found: dict[str, File]) -> list[str]:
        """What there is room for: parents before children, and else the least recent first."""
        pool = self._pool
        blocks = [a.n_free for a in pool.allocators]
        n_slots = pool.slots.n_free - 1  # one is left for a sequence
        room = pool.total_bytes if pool.limit_bytes is None else pool.limit_bytes
        chosen: set[str] = set()
        order: list[list[str]] = []
        for name in reversed(found):
            path: list[str] = []
            at = name
            while at not in chosen:
                path.append(at)
                head = found[at].head
                if head.is_first:
                    break
                at = head.parent.hex() + BLOCK
            wants = Counter(g for n in path for g in found[n].head.groups)
            states = sum(found[n].head.is_state for n in path)
            size = sum(found[n].size for n in path)
            fits = all(wants[g] <= n for g, n in enumerate(blocks)) and states <= n_slots
            if not fits or size > room:
                log.info("the prefix cache on disk is larger than the cache in memory")
                continue
            blocks = [n - wants[g] for g, n in enumerate(blocks)]
            n_slots, room = n_slots - states, room - size
            chosen.update(path)
            order.append(path[::-1])
        # The tree takes what comes last as used last.
        placed: dict[str, None] = {}
        for path in reversed(order):
            for name in path:
                self._place(name, found, placed)
        return sorted(placed, key=lambda n: found[n].head.is_state)

    @staticmethod
    def _place(name: str, found: dict[str, File], placed: dict[str, None]) -> None:
        """Puts a file behind its parents."""
        path = [name]
        while not (head := found[path[-1]].head).is_first:
            above = head.parent.hex() + BLOCK
            if above in placed:
                break
            path.append(above)
        placed.update(dict.fromkeys(reversed(path)))

    def _restore(self, file: BufferedReader, head: Head, parent: Node) -> Node | None:
        """Reads a block into memory of its own. Raises MemoryLimitError when there is none."""
        pool = self._pool
        blocks = [-1] * len(pool.groups)
        try:
            for group in head.groups:
                (blocks[group],) = pool.allocators[group].acquire(1)
            views = {g: pool.copier.block_views(g, blocks[g]) for g in head.groups}
            piece.read_data(file, head, chain.from_iterable(views.values()))
            for group, filled in views.items():
                pool.copier.put_block(group, blocks[group], filled)
            return pool.tree.restore(parent, head.tokens, blocks)
        finally:
            for allocator, block in zip(pool.allocators, blocks, strict=True):
                if block >= 0:
                    allocator.release([block])

    def _restore_state(self, file: BufferedReader, head: Head, parent: Node) -> None:
        pool = self._pool
        node = pool.tree.child(parent, head.tokens)
        if node is None or pool.slots.n_free < 2:
            return
        slot = pool.slots.acquire()
        kept = False
        try:
            views = pool.copier.state_views(slot)
            piece.read_data(file, head, views)
            pool.copier.put_state(slot, views)
            kept = pool.tree.put_state(node, len(head.tokens) // TOKEN_BYTES, slot)
        finally:
            if not kept:
                pool.slots.release(slot)

    def _ignore(self, name: str, error: Exception) -> None:
        log.warning("%s in the prefix cache %s is ignored: %s", name, self._folder, error)
        self._remove(name)

    def _remove(self, name: str) -> None:
        try:
            (self._folder / name).unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s cannot be removed: %s", self._folder / name, error)


def block_views(
    pool: CachePool, groups: Iterable[int], blocks: list[int]
) -> Iterator[npt.NDArray[np.uint8]]:
    """The bytes of a node: of its block in each group, in every layer."""
    for group in groups:
        yield from pool.copier.block_views(group, blocks[group])
