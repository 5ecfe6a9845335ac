"""A file that is being downloaded: its bytes so far, and a journal of its complete chunks.

    NAME.zinc-part      the file, at its final size; chunks are written at their places
    NAME.zinc-journal   a line that identifies the file, then the number of each complete chunk

A journal line is written after its chunk. If the process is killed between the two, the next one
downloads the chunk again. An incomplete line is ignored.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from zinc.core.rounding import ceil_div

_READ_BYTES = 1 << 20


class PartialFile:
    """The partial download of `target`, opened for writing.

    resumed: whether an earlier try left complete chunks. Chunks may be written from several
    threads. Raises OSError if the folder cannot be written.
    """

    def __init__(self, target: Path, n_bytes: int, sha256: str | None, chunk_bytes: int) -> None:
        self._target, self._n_bytes, self._chunk_bytes = target, n_bytes, chunk_bytes
        self._part = target.with_name(f"{target.name}.zinc-part")
        self._journal = target.with_name(f"{target.name}.zinc-journal")
        self._head = json.dumps({"bytes": n_bytes, "sha256": sha256, "chunk_bytes": chunk_bytes})
        self._lock = threading.Lock()
        self._complete = self._read_journal()
        self.resumed = bool(self._complete)
        if not self.resumed:
            self.delete()
            self._journal.write_text(f"{self._head}\n")
        self._file: BinaryIO = self._part.open("r+b" if self.resumed else "w+b")
        self._file.truncate(n_bytes)

    @property
    def chunks(self) -> list[tuple[int, int, int]]:
        """The missing chunks: number, first byte and end."""
        size = self._chunk_bytes
        return [
            (i, i * size, min((i + 1) * size, self._n_bytes))
            for i in range(ceil_div(self._n_bytes, size))
            if i not in self._complete
        ]

    @property
    def done_bytes(self) -> int:
        """Bytes of the complete chunks."""
        return self._n_bytes - sum(end - start for _, start, end in self.chunks)

    def write(self, start: int, data: bytes) -> None:
        """Write bytes at their place."""
        with self._lock:
            self._file.seek(start)
            self._file.write(data)

    def complete(self, chunk: int) -> None:
        """Note that all bytes of a chunk are written."""
        with self._lock:
            self._file.flush()
            with self._journal.open("a") as journal:
                journal.write(f"{chunk}\n")
            self._complete.add(chunk)

    def digest(self, progress: Callable[[], None] = lambda: None) -> str:
        """Return the SHA-256 of the file. progress: called after every megabyte."""
        found = hashlib.sha256()
        with self._lock:
            self._file.seek(0)
            while data := self._file.read(_READ_BYTES):
                found.update(data)
                progress()
        return found.hexdigest()

    def publish(self) -> None:
        """Sync the bytes to disk, then rename the file to its target in one step."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._part, self._target)
        self._journal.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file; its bytes stay for the next try."""
        self._file.close()

    def delete(self) -> None:
        """Delete the bytes and the journal."""
        self._journal.unlink(missing_ok=True)
        self._part.unlink(missing_ok=True)

    def _read_journal(self) -> set[int]:
        """Return the complete chunks of an earlier try, none if there is no matching one."""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            head, *lines = self._journal.read_text().split("\n")
            if head == self._head and self._part.stat().st_size == self._n_bytes:
                return {int(line) for line in lines[:-1] if line.isdecimal()}
        return set()


def missing_bytes(target: Path, n_bytes: int) -> int:
    """Return the bytes that a download of `target` still needs on disk."""
    if target.exists():
        return 0
    part = target.with_name(f"{target.name}.zinc-part")
    with contextlib.suppress(OSError):
        # A sparse file takes only its written blocks.
        return max(0, n_bytes - getattr(part.stat(), "st_blocks", 0) * 512)
    return n_bytes
