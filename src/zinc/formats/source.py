"""A model file that is read by position, and never mapped.

A read that meets the end of a file can be checked. A mapping cannot: touching a page behind the end
of a file that became shorter raises SIGBUS, which ends the process and every other model in it.
"""

from __future__ import annotations

import os
import stat
import weakref
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from zinc.core.errors import FormatError

REFETCH = "download or convert the file again"


class Stamp(NamedTuple):
    """A file's identity and version: each field of a changed file may differ.

    modified_ns, changed_ns: when its data and its inode were last changed.
    """

    device: int
    inode: int
    n_bytes: int
    modified_ns: int
    changed_ns: int


class Source:
    """An open regular file: `size` bytes at `path` when it was opened, as `opened` says.

    Reads are safe from several threads. The file is closed with the last reference to this object.
    """

    def __init__(self, path: Path) -> None:
        """Open a regular file for reading; raises FormatError where the system refuses."""
        self.path = path
        try:
            # A named pipe must not block the open: that it is a pipe is known afterwards only.
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from error
        weakref.finalize(self, os.close, self._fd)
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            raise FormatError(f"cannot read {path}", "it is not a regular file")
        if status.st_size == 0:
            raise FormatError(f"{path} is truncated", "it is empty", REFETCH)
        self.size = status.st_size
        self.opened = _stamp(status)

    def stamp(self) -> Stamp:
        """Return the stamp of the open file as it is now."""
        return _stamp(os.fstat(self._fd))

    def read(self, start: int, n_bytes: int, what: str) -> bytes:
        """Return `n_bytes` of the file from `start` on; `what` names them in a FormatError."""
        parts: list[bytes] = []
        end = start + n_bytes
        try:
            while start < end:
                part = os.pread(self._fd, end - start, start)
                if not part:
                    raise self._shorter(start, what)
                parts.append(part)
                start += len(part)
        except OSError as error:
            raise self._unreadable(error) from error
        return b"".join(parts)

    def read_into(self, target: NDArray[np.uint8], start: int, what: str) -> None:
        """Fill the contiguous array `target` with the bytes of the file from `start` on.

        Raises FormatError, naming `what` was to be read, when the file ends before or cannot be
        read.
        """
        view = target.data
        try:
            while len(view):
                n_read = os.preadv(self._fd, [view], start)
                if n_read == 0:
                    raise self._shorter(start, what)
                view = view[n_read:]
                start += n_read
        except OSError as error:
            raise self._unreadable(error) from error

    def _shorter(self, end: int, what: str) -> FormatError:
        return FormatError(
            f"{self.path} became shorter while it was read",
            f"it had {self.size} bytes when it was opened, and {what} reaches past byte {end}, "
            f"where it ends now",
            REFETCH,
        )

    def _unreadable(self, error: OSError | ValueError) -> FormatError:
        reason = error.strerror if isinstance(error, OSError) else None
        return FormatError(f"cannot read {self.path}", reason or str(error))


def _stamp(status: os.stat_result) -> Stamp:
    return Stamp(
        status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    )
