"""The key of a model's cached keys and values, which names its folder in the prefix cache.

The key covers the header and every byte of the tensors, so an edited file never finds the cache of
its old version. Tensors are hashed while they are loaded. The hashes are stored in the cache folder
with the size, inode and times of the file, so an unchanged file is hashed only once.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from zinc import __version__
from zinc.backends.api import Backend, ByteReader, CacheLayout
from zinc.backends.plans import Plan
from zinc.core.errors import FormatError
from zinc.formats.gguf import GGUFFile, Tensor
from zinc.formats.gguf_part import Part
from zinc.kv.cache_file import write_atomically

log = logging.getLogger("zinc.cache")

# Two changes within one tick of the file system's clock leave the same times, so hashes of a file
# that changed this recently are not stored.
SETTLED_NS = 2 * 10**9
_CHUNK_BYTES = 8 << 20


class HashingReader:
    """Reader of a tensor that hashes each byte once, in file order.

    A thread of `hasher` computes the hash, so that the caller can pack the bytes meanwhile.
    """

    def __init__(self, tensor: Tensor, hasher: ThreadPoolExecutor) -> None:
        self._tensor, self._hasher = tensor, hasher
        self._sha = hashlib.sha256()
        self._n_hashed = 0
        self._pending: Future[None] | None = None
        self._lock = threading.Lock()  # weights that are parts of a tensor may share the reader

    @property
    def n_bytes(self) -> int:
        return self._tensor.n_bytes

    def read_into(self, target: npt.NDArray[np.uint8], start: int = 0) -> None:
        """Fill `target` with the tensor's bytes starting at `start`. Raises FormatError.

        `target` must stay as it is until the next read, unless it has the tensor's last bytes.
        """
        with self._lock:
            self._settle()  # the hasher may still read `target`
            self._tensor.read_into(target, start)
            end = start + target.nbytes
            if start <= self._n_hashed < end:
                unseen = target[self._n_hashed - start :]
                self._pending = self._hasher.submit(self._sha.update, unseen.data)
                self._n_hashed = end
                if end == self.n_bytes:
                    self._settle()

    def finish(self) -> str:
        """Return the hash of all bytes; reads the bytes that were not read before."""
        scratch = np.empty(min(_CHUNK_BYTES, self.n_bytes - self._n_hashed), np.uint8)
        while self._n_hashed < self.n_bytes:
            self.read_into(scratch[: self.n_bytes - self._n_hashed], self._n_hashed)
        self._settle()
        return self._sha.hexdigest()

    def _settle(self) -> None:
        if self._pending is not None:
            self._pending.result()
            self._pending = None


class TensorDigests:
    """SHA-256 hashes of the tensors of a file, stored in `folder` until the file changes.

    A backend reads tensors through `reader`; `finish` hashes the remaining ones.
    """

    def __init__(self, file: GGUFFile, folder: Path) -> None:
        self._parts = [_PartDigests(part, folder) for part in file.parts]
        self._of = {name: part for part in self._parts for name in part.part.tensors}
        self._readers: dict[str, HashingReader] = {}
        self._hasher = ThreadPoolExecutor(1, "zinc-hash")

    def reader(self, tensor: Tensor) -> ByteReader:
        """Return a reader of `tensor` that hashes it; the tensor itself if its hash is known."""
        if tensor.name in self._of[tensor.name].known:
            return tensor
        if tensor.name not in self._readers:
            self._readers[tensor.name] = HashingReader(tensor, self._hasher)
        return self._readers[tensor.name]

    def finish(self) -> str:
        """Return the hash of headers and tensors, and store the hashes of the tensors.

        Raises FormatError if a file cannot be read or has changed since it was opened.
        """
        digest = hashlib.sha256()
        for part in self._parts:
            digest.update(hashlib.sha256(part.part.header.data).digest())
            for name, tensor in part.part.tensors.items():
                if name not in part.known:
                    reader = self._readers.pop(name, None) or HashingReader(tensor, self._hasher)
                    part.known[name] = reader.finish()
                digest.update(bytes.fromhex(part.known[name]))
            part.remember()
        self._hasher.shutdown()
        return digest.hexdigest()


class _PartDigests:
    """SHA-256 hashes of the tensors of one file. known: hashes by tensor name."""

    def __init__(self, part: Part, folder: Path) -> None:
        self.part = part
        name = hashlib.sha256(os.fsencode(part.path.absolute())).hexdigest()[:16]
        self._record = folder / f"weights-{name}.json"
        self._opened_ns = time.time_ns()
        self.known = self._recall()

    def _recall(self) -> dict[str, str]:
        """Return the stored hashes; empty unless they belong to this exact state of the file."""
        try:
            record: Any = json.loads(self._record.read_bytes())
            if tuple(record["stamp"]) == self.part.source.opened:
                digests = {name: str(record["sha256"][name]) for name in self.part.tensors}
                if all(len(bytes.fromhex(digest)) == 32 for digest in digests.values()):
                    return digests
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            log.warning("%s is ignored: %s", self._record, error)
        return {}

    def remember(self) -> None:
        """Write the hashes to the cache folder. Raises FormatError if the file has changed."""
        stamp = self.part.source.opened
        if self.part.source.stamp() != stamp:
            raise FormatError(
                f"{self.part.path} changed while it was loaded",
                "its size or times have changed since it was opened",
                "load it again when it is complete",
            )
        changed_ns = max(stamp.modified_ns, stamp.changed_ns)
        if self._opened_ns - changed_ns < SETTLED_NS:
            return
        record = json.dumps({"stamp": stamp, "sha256": self.known}).encode()
        try:
            write_atomically(self._record, record)
        except OSError as error:
            log.warning("hashes of %s cannot be stored: %s", self.part.path, error)


def cache_key(weights: str, plans: Iterable[Plan], layout: CacheLayout, backend: Backend) -> str:
    """Return the folder name for the cached keys and values of a model.

    weights: from `TensorDigests.finish`. The name changes with the weights, the plans, the cache
    layout, the backend and zinc's version.
    """
    parts = (
        __version__,
        weights,
        *(plan.hash for plan in plans),
        layout.block_tokens,
        layout.kv_dtype,
        sorted(layout.group_of.items()),
        backend.name,
        backend.capabilities.level,
        backend.capabilities.batch_invariant,
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
