"""Restoration of a prefix cache from its files, as far as there is room in memory.

Files are listed, connected to their parents (a block is useless without the text before it),
chosen by time of last use, and read. Files that are damaged, foreign or without parents are
removed; nothing in a file is used before its checksum has been verified.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from io import BufferedIOBase
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt

from zinc.core.dataclass import dataclass
from zinc.core.errors import MemoryLimitError
from zinc.kv import cache_file
from zinc.kv.cache_file import BLOCK, STATE, DamagedError, Header
from zinc.kv.node import ROOT, TOKEN_BYTES, Node, text_digest
from zinc.kv.pool import CachePool

log = logging.getLogger("zinc.cache")

# Temporary files of this age are left over from a process that was killed.
TEMPORARY_AGE_NS = 3600 * 10**9


@dataclass(frozen=True, slots=True)
class CacheFile:
    """A cache file with a valid header; `size` is the size of its data in bytes."""

    size: int
    header: Header


class Recovery:
    """Recovery of cached prefixes into a pool, from the files of one `key` in a folder."""

    def __init__(self, folder: Path, key: str, pool: CachePool) -> None:
        self._folder, self._key, self._pool = folder, key, pool

    def run(self) -> tuple[dict[str, CacheFile], int]:
        """Restore files.

        Returns all valid files, least recently used first, and the number of restored tokens.
        """
        found = self._index()
        restored: dict[bytes, Node] = {}
        n_tokens, pool = 0, self._pool
        for name in self._choose(found):
            header = found[name].header
            is_first = header.is_first
            parent = pool.tree.root(header.parent) if is_first else restored.get(header.parent)
            if parent is None:
                continue  # the parent was damaged or did not fit
            try:
                with (self._folder / name).open("rb") as file:
                    cache_file.read_header(file, self._key)
                    if header.is_state:
                        restore_state(pool, file, header, parent)
                        continue
                    node = restore_block(pool, file, header, parent)
            except (OSError, DamagedError) as error:
                self._ignore(name, error)
                del found[name]
                continue
            except MemoryLimitError:
                break
            if node is not None:
                restored[text_digest(header.parent, header.tokens)] = node
                n_tokens += node.n_tokens
        return found, n_tokens

    def _index(self) -> dict[str, CacheFile]:
        """Return the files with all their parents, least recently used first; remove the others."""
        times: list[tuple[int, str]] = []
        long_ago = time.time_ns() - TEMPORARY_AGE_NS
        try:
            for entry in os.scandir(self._folder):
                changed = entry.stat().st_mtime_ns
                if entry.name.endswith((BLOCK, STATE)):
                    times.append((changed, entry.name))
                elif entry.name.startswith(cache_file.TEMPORARY) and changed < long_ago:
                    os.unlink(entry.path)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                log.warning("the prefix cache in %s cannot be read: %s", self._folder, error)
        found: dict[str, CacheFile] = {}
        for _, name in sorted(times):
            try:
                found[name] = self._open(name)
            except (OSError, DamagedError) as error:
                self._ignore(name, error)
        return self._connected(found)

    def _open(self, name: str) -> CacheFile:
        """Read and check the header of a file. Raises DamagedError."""
        with (self._folder / name).open("rb") as file:
            header = cache_file.read_header(file, self._key)
            size = os.fstat(file.fileno()).st_size - file.tell()
        check_header(header, name, self._pool)
        return CacheFile(size, header)

    def _connected(self, found: dict[str, CacheFile]) -> dict[str, CacheFile]:
        """Return the files with all their parents, and remove the others."""
        reached: dict[bytes, bool] = {}

        def reaches(header: Header) -> bool:
            path = []
            while not header.is_first and header.parent not in reached:
                path.append(header.parent)
                above = found.get(header.parent.hex() + BLOCK)
                if above is None:
                    break
                header = above.header
            answer = header.is_first or reached.get(header.parent, False)
            reached.update(dict.fromkeys(path, answer))
            return answer

        kept = {name: file for name, file in found.items() if reaches(file.header)}
        for name in found.keys() - kept.keys():
            self._remove(name)
        return kept

    def _choose(self, found: dict[str, CacheFile]) -> list[str]:
        """Return the files to restore: parents first, otherwise the least recently used first."""
        pool = self._pool
        blocks = [a.n_free for a in pool.allocators]
        n_slots = pool.slots.n_free - 1  # leave one for a sequence
        room = pool.total_bytes if pool.limit_bytes is None else pool.limit_bytes
        chosen: set[str] = set()
        order: list[list[str]] = []
        for name in reversed(found):
            path: list[str] = []
            at = name
            while at not in chosen:
                path.append(at)
                header = found[at].header
                if header.is_first:
                    break
                at = header.parent.hex() + BLOCK
            wants = Counter(g for n in path for g in found[n].header.groups)
            states = sum(found[n].header.is_state for n in path)
            size = sum(found[n].size for n in path)
            fits = all(wants[g] <= n for g, n in enumerate(blocks)) and states <= n_slots
            if not fits or size > room:
                log.info("the prefix cache on disk is larger than the cache in memory")
                continue
            blocks = [n - wants[g] for g, n in enumerate(blocks)]
            n_slots, room = n_slots - states, room - size
            chosen.update(path)
            order.append(path[::-1])
        # The tree treats the order of insertion as the order of use.
        placed: dict[str, None] = {}
        for path in reversed(order):
            for name in path:
                self._place(name, found, placed)
        return sorted(placed, key=lambda n: found[n].header.is_state)

    @staticmethod
    def _place(name: str, found: dict[str, CacheFile], placed: dict[str, None]) -> None:
        """Append a file to `placed`, after those of its parents that are missing."""
        path = [name]
        while not (header := found[path[-1]].header).is_first:
            above = header.parent.hex() + BLOCK
            if above in placed:
                break
            path.append(above)
        placed.update(dict.fromkeys(reversed(path)))

    def _ignore(self, name: str, error: Exception) -> None:
        log.warning("%s in the prefix cache %s is ignored: %s", name, self._folder, error)
        self._remove(name)

    def _remove(self, name: str) -> None:
        try:
            (self._folder / name).unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s cannot be removed: %s", self._folder / name, error)


def check_header(header: Header, name: str, pool: CachePool) -> None:
    """Raise DamagedError unless the header of the file `name` fits the layout of a pool."""
    count, rest = divmod(len(header.tokens), TOKEN_BYTES)
    fits = (
        header.name == name
        and len(header.parent) == len(ROOT)
        and rest == 0
        and 0 < count <= pool.block_tokens
        and header.groups == tuple(sorted(set(header.groups) & set(range(len(pool.groups)))))
        and (pool.recurrent or not header.is_state)
        and (
            header.is_state
            or all(g in header.groups for g, group in enumerate(pool.groups) if not group.window)
        )
    )
    if not fits:
        raise DamagedError("its header does not fit the model")


def restore_block(
    pool: CachePool, file: BufferedIOBase, header: Header, parent: Node
) -> Node | None:
    """Read the data of a file into new blocks; return their node, None if the tree has the text.

    Raises DamagedError or MemoryLimitError.
    """
    blocks = [-1] * len(pool.groups)
    try:
        for group in header.groups:
            (blocks[group],) = pool.allocators[group].acquire(1)
        views = {g: pool.copier.block_views(g, blocks[g]) for g in header.groups}
        cache_file.read_data(file, header, chain.from_iterable(views.values()))
        for group, filled in views.items():
            pool.copier.put_block(group, blocks[group], filled)
        return pool.tree.restore(parent, header.tokens, blocks)
    finally:
        for allocator, block in zip(pool.allocators, blocks, strict=True):
            if block >= 0:
                allocator.release([block])


def restore_state(pool: CachePool, file: BufferedIOBase, header: Header, parent: Node) -> None:
    """Read a checkpoint into a new slot, if the tree has its node and a slot is to spare.

    Raises DamagedError.
    """
    node = pool.tree.child(parent, header.tokens)
    if node is None or pool.slots.n_free < 2:
        return
    slot = pool.slots.acquire()
    kept = False
    try:
        views = pool.copier.state_views(slot)
        cache_file.read_data(file, header, views)
        pool.copier.put_state(slot, views)
        kept = pool.tree.put_state(node, len(header.tokens) // TOKEN_BYTES, slot)
    finally:
        if not kept:
            pool.slots.release(slot)


def block_views(
    pool: CachePool, groups: Iterable[int], blocks: list[int]
) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield views of the data of a node: its block in each of `groups`, layer by layer."""
    for group in groups:
        yield from pool.copier.block_views(group, blocks[group])
