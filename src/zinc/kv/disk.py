"""The prefix cache on disk, so that a conversation goes on after a restart.

    magic | length, crc32 of the index | index (JSON) | data of each node: blocks, then states

The index lists nodes with their parents first: tokens, which groups have a block, where
checkpoints are, and the crc32 of the data. Sizes follow from the cache that reads the file, never
from the file. A file belongs to one `key` (model, plan, layout, version) and is replaced as a
whole. What does not fit any more, is damaged or foreign is left out with a warning: a cache may
forget, and never lies.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import struct
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from zinc.core.errors import MemoryLimitError
from zinc.kv.pool import CachePool
from zinc.kv.tree import TOKEN_BYTES, Node

log = logging.getLogger("zinc.cache")

MAGIC = b"zinc prefix cache 1\n"
_HEAD = struct.Struct("<QI")
MAX_INDEX_BYTES = 1 << 28


class DamagedError(Exception):
    """A cache file is not what it claims to be. Never leaves this module."""


@dataclass(frozen=True, slots=True)
class CacheFile:
    """The file of one model in a cache folder. `limit_bytes` bounds what is written."""

    folder: Path
    key: str
    limit_bytes: int | None = None

    @property
    def path(self) -> Path:
        return self.folder / f"{self.key}.zinccache"

    def save(self, pool: CachePool) -> int:
        """Writes what the pool keeps, the most recently used first; returns how many tokens.

        A failure to write (no space, no permission) is a warning: the cache is a convenience.
        """
        nodes = self._chosen(pool)
        if not nodes:
            return 0
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.folder, delete=False) as file:
                try:
                    _write(file, pool, nodes, self.key)
                    os.replace(file.name, self.path)  # readable by its owner alone, as it was made
                except BaseException:
                    os.unlink(file.name)
                    raise
        except OSError as error:
            log.warning("the prefix cache was not written to %s: %s", self.path, error)
            return 0
        return sum(node.n_tokens for node in nodes)

    def load(self, pool: CachePool) -> int:
        """Restores what was saved, as far as there is room; returns how many tokens."""
        try:
            with self.path.open("rb") as file:
                return _read(file, pool, self.key)
        except FileNotFoundError:
            return 0
        except (OSError, DamagedError) as error:
            log.warning("the prefix cache in %s, or a part of it, is ignored: %s", self.path, error)
            return 0

    def _chosen(self, pool: CachePool) -> list[Node]:
        """Nodes to write, parents before their children."""
        nodes: list[Node] = []
        pool.tree.walk(lambda node, key: nodes.append(node))
        # A parent was used whenever a child was; the sort keeps it first among equals.
        nodes.sort(key=lambda node: -node.used)
        sizes = [g.block_bytes for g in pool.groups]
        total, chosen = 0, []
        for node in nodes:
            total += sum(s for s, block in zip(sizes, node.blocks, strict=True) if block >= 0)
            total += pool.state_bytes * len(node.states)
            if self.limit_bytes is not None and total > self.limit_bytes:
                break
            chosen.append(node)
        return chosen


def _write(file: Any, pool: CachePool, nodes: list[Node], key: str) -> None:
    numbers = {id(node): i for i, node in enumerate(nodes)}
    entries = []
    for node in nodes:
        crc = 0
        for view in _views(pool, node):
            crc = zlib.crc32(view.data, crc)
        entries.append(
            {
                "parent": numbers.get(id(node.parent), -1),
                "tokens": base64.b64encode(node.tokens).decode(),
                "groups": [i for i, block in enumerate(node.blocks) if block >= 0],
                "states": sorted(node.states),
                "crc": crc,
            }
        )
    index = json.dumps({"key": key, "nodes": entries}, separators=(",", ":")).encode()
    file.write(MAGIC + _HEAD.pack(len(index), zlib.crc32(index)) + index)
    for node in nodes:
        for view in _views(pool, node):
            file.write(view.data)


def _views(pool: CachePool, node: Node) -> Iterator[npt.NDArray[np.uint8]]:
    for group, block in enumerate(node.blocks):
        if block >= 0:
            yield from pool.copier.block_views(group, block)
    for offset in sorted(node.states):
        yield from pool.copier.state_views(node.states[offset])


def _read(file: BufferedReader, pool: CachePool, key: str) -> int:
    entries = _index(file, key)
    restored: dict[int, Node] = {}
    n_tokens = 0
    for i, entry in enumerate(entries):
        parent, tokens, groups, states, crc = _entry(entry, i, pool)
        if parent >= 0 and parent not in restored:
            _skip(file, pool, groups, len(states))
            continue
        try:
            node = _restore(file, pool, restored.get(parent), tokens, groups, states, crc)
        except MemoryLimitError:
            log.info("the prefix cache on disk is larger than the cache: %d tokens kept", n_tokens)
            break
        if node is not None:
            restored[i] = node
            n_tokens += node.n_tokens
    return n_tokens


def _index(file: BufferedReader, key: str) -> list[dict[str, Any]]:
    head = file.read(len(MAGIC) + _HEAD.size)
    if len(head) != len(MAGIC) + _HEAD.size or not head.startswith(MAGIC):
        raise DamagedError("it is not a cache file of this version")
    length, crc = _HEAD.unpack(head[len(MAGIC) :])
    if length > min(MAX_INDEX_BYTES, os.fstat(file.fileno()).st_size):
        raise DamagedError("its index is longer than the file")
    text = file.read(length)
    if len(text) != length or zlib.crc32(text) != crc:
        raise DamagedError("its index is damaged")
    try:
        index = json.loads(text)
        if index["key"] != key:
            raise DamagedError("it is of another model or version")
        entries = index["nodes"]
        if isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries):
            return entries
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DamagedError("its index cannot be read") from error
    raise DamagedError("its index cannot be read")


def _entry(
    entry: dict[str, Any], number: int, pool: CachePool
) -> tuple[int, bytes, list[int], list[int], int]:
    """The fields of a node, checked."""
    try:
        parent, crc = int(entry["parent"]), int(entry["crc"])
        tokens = base64.b64decode(entry["tokens"], validate=True)
        groups, states = [int(g) for g in entry["groups"]], [int(s) for s in entry["states"]]
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError("its index cannot be read") from error
    count, rest = divmod(len(tokens), TOKEN_BYTES)
    fits = (
        -1 <= parent < number
        and rest == 0
        and 0 < count <= pool.block_tokens
        and groups == sorted(set(groups) & set(range(len(pool.groups))))
        and states == sorted({s for s in states if 0 < s <= count})
        and (pool.recurrent or not states)
        and all(g in groups for g, group in enumerate(pool.groups) if not group.window)
    )
    if not fits:
        raise DamagedError("its index contradicts the model")
    return parent, tokens, groups, states, crc


def _restore(
    file: BufferedReader,
    pool: CachePool,
    parent: Node | None,
    tokens: bytes,
    groups: list[int],
    states: list[int],
    crc: int,
) -> Node | None:
    """Reads a node's data into blocks of its own. Raises MemoryLimitError when there are none."""
    blocks = [-1] * len(pool.groups)
    slots: list[int] = []
    node = None
    try:
        for group in groups:
            (blocks[group],) = pool.allocators[group].acquire(1)
        n_slots = min(len(states), max(0, pool.slots.n_free - 1))  # one is left for a sequence
        slots = [pool.slots.acquire() for _ in range(n_slots)]
        found = 0
        for group in groups:
            for view in pool.copier.block_views(group, blocks[group]):
                found = _fill(file, view, found)
        for slot in slots:
            for view in pool.copier.state_views(slot):
                found = _fill(file, view, found)
        for _ in states[len(slots) :]:
            for view in pool.copier.state_views(0):
                found = _fill(file, np.empty_like(view), found)
        if found != crc:
            raise DamagedError("its data is damaged")
        node = pool.tree.restore(parent, tokens, blocks)
        return node
    finally:
        for offset, slot in zip(states, slots, strict=False):
            if node is None or not pool.tree.put_state(node, offset, slot):
                pool.slots.release(slot)
        for allocator, block in zip(pool.allocators, blocks, strict=True):
            if block >= 0:
                allocator.release([block])


def _fill(file: BufferedReader, view: npt.NDArray[np.uint8], crc: int) -> int:
    if file.readinto(view.data) != view.nbytes:
        raise DamagedError("it ends too early")
    return zlib.crc32(view.data, crc)


def _skip(file: BufferedReader, pool: CachePool, groups: list[int], n_states: int) -> None:
    size = sum(view.nbytes for g in groups for view in pool.copier.block_views(g, 0))
    size += n_states * sum(view.nbytes for view in pool.copier.state_views(0))
    file.seek(size, os.SEEK_CUR)
