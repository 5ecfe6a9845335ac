"""Cache files in memory that all replicas share: Ray's object store.

    replica: write → object store, its reference → directory
    replica: find → directory, read → object store (of its own machine, or of another one)

The directory knows where each cache file is, and drops the least recently used ones. Objects belong
to the replica that wrote them, and vanish with it; the tokens of a vanished file are computed
again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

from zinc.core.dataclass import dataclass
from zinc.kv.cache_file import Header, file_start
from zinc.kv.pool import CachePool
from zinc.kv.recovery import CacheFile
from zinc.kv.store import Entry

Reference: TypeAlias = Any  # of an object, such as ray.ObjectRef

_READ_FILES = 8  # references that are requested at a time


class Directory:
    """References of cache files, by key and name; at most `limit_bytes` of files."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._files: OrderedDict[tuple[str, str], tuple[Reference, int]] = OrderedDict()
        self._n_bytes = 0

    def add(self, key: str, name: str, reference: Sequence[Reference], n_bytes: int) -> None:
        """Add a file. reference: in a list, since Ray replaces bare references by their objects."""
        self.remove(key, name)
        self._files[key, name] = reference[0], n_bytes
        self._n_bytes += n_bytes
        while self._n_bytes > self._limit_bytes:
            self.remove(*next(iter(self._files)))

    def remove(self, key: str, name: str) -> None:
        """Remove a file, if it is there."""
        _, n_bytes = self._files.pop((key, name), (None, 0))
        self._n_bytes -= n_bytes

    def touch(self, key: str, names: Iterable[str]) -> list[str]:
        """Mark the files `names` as used now. Return the names of missing files."""
        missing = []
        for name in names:
            if (key, name) in self._files:
                self._files.move_to_end((key, name))
            else:
                missing.append(name)
        return missing

    def find(self, key: str, names: Iterable[str]) -> dict[str, tuple[Reference, int]]:
        """Return the references and sizes in bytes of the files that exist."""
        return {name: self._files[key, name] for name in names if (key, name) in self._files}


class Objects(Protocol):
    """An object store. All methods raise OSError."""

    def put(self, data: bytes) -> Reference:
        """Store an object; return its reference."""

    def get(self, references: Sequence[Reference]) -> list[bytes]:
        """Return objects."""


@dataclass(slots=True)
class SharedStore:
    """The cache files of one key in an object store: a `zinc.kv.store.Store`.

    call: calls a method of the directory, by its name, and raises OSError.
    """

    key: str
    objects: Objects
    call: Callable[..., Any]

    def __str__(self) -> str:
        return "the memory that replicas share"

    def write(self, header: Header, data: bytes) -> None:
        """Write a file, unless another replica did."""
        if not self.call("touch", self.key, [header.name]):
            return
        content = file_start(self.key, header, data) + data
        self.call("add", self.key, header.name, [self.objects.put(content)], len(content))

    def touch(self, names: Iterable[str]) -> list[str]:
        """Mark the files `names` as used now. Return the names of missing files."""
        missing: list[str] = self.call("touch", self.key, list(names))
        return missing

    def remove(self, name: str) -> None:
        """Leave a file to the directory: other replicas may use it."""

    def discard(self, name: str) -> None:
        """Remove a damaged file."""
        self.call("remove", self.key, name)

    def find(self, names: Sequence[str]) -> dict[str, Entry]:
        """Return those files that exist, by name."""
        found: dict[str, tuple[Reference, int]] = self.call("find", self.key, list(names))
        return {name: Entry(name, size, place) for name, (place, size) in found.items()}

    def read(self, entries: Sequence[Entry]) -> Iterator[bytes]:
        """Yield the contents of files. Raises OSError if one is gone."""
        for i in range(0, len(entries), _READ_FILES):
            yield from self.objects.get([each.place for each in entries[i : i + _READ_FILES]])

    def recover(self, pool: CachePool) -> tuple[dict[str, CacheFile], int]:
        """Restore nothing: prefixes are fetched when a prompt needs them."""
        return {}, 0
