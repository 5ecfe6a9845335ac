"""A cursor over a mapped file that never reads, and never lets a caller allocate, past its end.

Every read names what is read, so an error can say which field of the header the file lies about.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
from pathlib import Path

from zinc.core.errors import FormatError
from zinc.formats.metadata import read_u64

MAX_NAME_BYTES = 65_535

REFETCH = "download or convert the file again"


def map_file(path: Path) -> mmap.mmap:
    """Map a regular file for reading; raises FormatError where the system refuses."""
    try:
        with open(path, "rb", opener=_open_without_blocking) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise FormatError(f"cannot read {path}", "it is not a regular file")
            if status.st_size == 0:
                raise FormatError(f"{path} is truncated", "it is empty", REFETCH)
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise FormatError(f"cannot read {path}", reason or str(error)) from error


def _open_without_blocking(path: str, flags: int) -> int:
    """A named pipe must not hang us before we can see that it is one."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


class Cursor:
    """Position `position` in `buffer`, the mapped file at `path`; FormatError beyond its end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.buffer = map_file(path)
        self.size = len(self.buffer)
        self.position = 0

    def corrupt(self, why: str) -> FormatError:
        return FormatError(f"{self.path} is corrupt", why, REFETCH)

    def truncated(self, what: str, n_missing: int) -> FormatError:
        why = f"it has {self.size} bytes and {what} needs {n_missing} more"
        return FormatError(f"{self.path} is truncated or corrupt", why, REFETCH)

    def take(self, n_bytes: int, what: str) -> int:
        """Move past `n_bytes` and return where they start."""
        start = self.position
        if n_bytes > self.size - start:
            raise self.truncated(what, start + n_bytes - self.size)
        self.position = start + n_bytes
        return start

    def u32(self, what: str) -> int:
        return int.from_bytes(self.raw(4, what), "little")

    def u64(self, what: str) -> int:
        return int.from_bytes(self.raw(8, what), "little")

    def raw(self, n_bytes: int, what: str) -> bytes:
        start = self.take(n_bytes, what)
        return self.buffer[start : self.position]

    def string(self, what: str) -> bytes:
        """A length and that many bytes."""
        return self.raw(self.u64(what), what)

    def name(self, what: str) -> str:
        """A length and that many bytes of printable UTF-8, at most `MAX_NAME_BYTES`."""
        n_bytes = self.u64(what)
        if not 0 < n_bytes <= MAX_NAME_BYTES:
            raise self.corrupt(f"the name of a {what} has {n_bytes} bytes")
        raw = self.raw(n_bytes, what)
        name = raw.decode("utf-8", "replace")
        if "\ufffd" in name or not name.isprintable():  # names go to terminals as they are
            raise self.corrupt(f"the name of a {what} is no printable UTF-8: {raw[:40]!r}")
        return name

    def count(self, noun: str, min_bytes: int, highest: int) -> int:
        """A count of items of at least `min_bytes` each, all of which are still to come."""
        count = self.u64(f"the count of {noun}")
        most = min(highest, (self.size - self.position) // min_bytes)
        if count > most:
            raise self.corrupt(f"it claims {count} {noun}, and at most {most} are possible")
        return count

    def skip_strings(self, count: int, what: str) -> None:
        """Walk over the lengths; half a million strings take 40 ms.

        Lengths are unsigned, so a lying one moves the position past the end and the next read
        fails: one check after the loop is enough.
        """
        if count * 8 > self.size - self.position:
            raise self.truncated(what, self.position + count * 8 - self.size)
        buffer, position = self.buffer, self.position
        try:
            for _ in range(count):
                position += 8 + read_u64(buffer, position)[0]
        except (struct.error, OverflowError):
            position = max(position, self.size + 1)
        if position > self.size:
            raise self.truncated(what, position - self.size)
        self.position = position
