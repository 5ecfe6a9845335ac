"""Stores of cache files outside of the cache memory of a process.

A store holds the files of one `key` (model, plan, layout, version), by name. Several processes may
use one store: names are digests of texts, so a file means the same to each of them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from zinc.core.dataclass import dataclass
from zinc.kv import cache_file
from zinc.kv.cache_file import Header
from zinc.kv.pool import CachePool
from zinc.kv.recovery import CacheFile, Recovery


@dataclass(frozen=True, slots=True)
class Entry:
    """A file in a store. place: the location of the file in the store."""

    name: str
    n_bytes: int
    place: object = None


class Store(Protocol):
    """The cache files of one key. Its text form names it in warnings.

    `find` and `read` run in other threads than the rest.
    """

    key: str

    def write(self, header: Header, data: bytes) -> None:
        """Write a file. Raises OSError."""

    def touch(self, names: Iterable[str]) -> list[str]:
        """Mark the files `names` as used now. Return the names of missing files. Raises OSError."""

    def remove(self, name: str) -> None:
        """Remove a file, if there is one. Raises OSError."""

    def discard(self, name: str) -> None:
        """Remove a damaged file, also one of another process. Raises OSError."""

    def find(self, names: Sequence[str]) -> dict[str, Entry]:
        """Return those files that exist, by name. Raises OSError."""

    def read(self, entries: Sequence[Entry]) -> Iterator[bytes]:
        """Yield the contents of files, up to the first one that is gone. Raises OSError."""

    def recover(self, pool: CachePool) -> tuple[dict[str, CacheFile], int]:
        """Restore files at the start, as far as there is room; see `Recovery.run`."""


class FolderStore:
    """A store in `folder`/`key`; the modification times of files record the order of last use."""

    def __init__(self, folder: Path, key: str) -> None:
        self.folder, self.key = folder / key, key

    def __str__(self) -> str:
        return str(self.folder)

    def write(self, header: Header, data: bytes) -> None:
        """Write a file."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        cache_file.write_file(self.folder, self.key, header, data)

    def touch(self, names: Iterable[str]) -> list[str]:
        """Mark the files `names` as used now. Return the names of missing files."""
        missing = []
        for name in names:
            try:
                os.utime(self.folder / name)
            except FileNotFoundError:
                missing.append(name)
        return missing

    def remove(self, name: str) -> None:
        """Remove a file, if there is one."""
        with contextlib.suppress(NotADirectoryError):
            (self.folder / name).unlink(missing_ok=True)

    def discard(self, name: str) -> None:
        """Remove a damaged file."""
        self.remove(name)

    def find(self, names: Sequence[str]) -> dict[str, Entry]:
        """Return those files that exist, by name."""
        found = {}
        for name in names:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                found[name] = Entry(name, (self.folder / name).stat().st_size)
        return found

    def read(self, entries: Sequence[Entry]) -> Iterator[bytes]:
        """Yield the contents of files, up to the first one that is gone."""
        for entry in entries:
            try:
                yield (self.folder / entry.name).read_bytes()
            except FileNotFoundError:
                return

    def recover(self, pool: CachePool) -> tuple[dict[str, CacheFile], int]:
        """Restore files at the start, as far as there is room."""
        return Recovery(self.folder, self.key, pool).run()
