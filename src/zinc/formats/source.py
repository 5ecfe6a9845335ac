"""Reads from an open model file, which is never mapped into memory.

A read past the end of the file can be reported. With a mapping, touching a page past the end of a
file that has become shorter raises SIGBUS, which would end the process and every model in it.
"""

from __future__ import annotations

import os
import stat
import threading
import weakref
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from zinc.core.errors import FormatError, next_step

REFETCH = "download or convert the file again"
# Flags that this system has. Windows opens files as text unless O_BINARY is set.
_OPEN_FLAGS = os.O_RDONLY | sum(
    getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NONBLOCK", "O_BINARY", "O_NOINHERIT")
)
_READ_BYTES = 16 << 20  # of one read into a temporary buffer


class Stamp(NamedTuple):
    """Identity and version of a file; a changed file has another stamp.

    modified_ns, changed_ns: times of the last change of its data and of its inode.
    """

    device: int
    inode: int
    n_bytes: int
    modified_ns: int
    changed_ns: int


class Source:
    """An open regular file.

    size and opened are its size in bytes and its stamp when it was opened. Threads may read at the
    same time. The file is closed with the last reference to this object.
    """

    def __init__(self, path: Path) -> None:
        """Open a regular file for reading. Raises FormatError if that is not possible."""
        self.path = path
        self._seeking = threading.Lock()
        try:
            # Only after opening can a named pipe be recognised, so opening must not block.
            self._fd = os.open(path, _OPEN_FLAGS)
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from error
        weakref.finalize(self, os.close, self._fd)
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            raise FormatError(
                f"cannot read {path}", "it is not a regular file", "give a .gguf file"
            )
        if status.st_size == 0:
            raise FormatError(f"{path} is truncated", "it is empty", REFETCH)
        self.size = status.st_size
        self.opened = _stamp(status)

    def stamp(self) -> Stamp:
        """Return the current stamp of the open file."""
        return _stamp(os.fstat(self._fd))

    def read(self, start: int, n_bytes: int, what: str) -> bytes:
        """Return `n_bytes` of the file starting at `start`; `what` names them in a FormatError."""
        data = bytearray(n_bytes)
        self._fill(memoryview(data), start, what)
        return bytes(data)

    def read_into(self, target: NDArray[np.uint8], start: int, what: str) -> None:
        """Fill the contiguous array `target` with the bytes of the file starting at `start`.

        what: name of the data for the error. Raises FormatError if the file is too short or cannot
        be read.
        """
        self._fill(target.data, start, what)

    def _fill(self, view: memoryview, start: int, what: str) -> None:
        try:
            while len(view):
                n_read = self._read_at(view, start)
                if n_read == 0:
                    raise self._shorter(start, what)
                view = view[n_read:]
                start += n_read
        except OSError as error:
            raise self._unreadable(error) from error

    def _read_at(self, view: memoryview, start: int) -> int:
        """Read bytes starting at `start` into `view`; return how many, 0 at the end of the file."""
        if hasattr(os, "preadv"):
            return os.preadv(self._fd, [view], start)
        with self._seeking:  # Windows reads at the one position that the file has
            os.lseek(self._fd, start, os.SEEK_SET)
            part = os.read(self._fd, min(len(view), _READ_BYTES))
        view[: len(part)] = part
        return len(part)

    def _shorter(self, end: int, what: str) -> FormatError:
        return FormatError(
            f"{self.path} became shorter while it was read",
            f"it had {self.size} bytes when it was opened, and {what} reaches past byte {end}, "
            f"where it ends now",
            REFETCH,
        )

    def _unreadable(self, error: OSError | ValueError) -> FormatError:
        what = f"cannot read {self.path}"
        if not isinstance(error, OSError):
            return FormatError(what, str(error))
        return FormatError(what, error.strerror or str(error), next_step(error))


def _stamp(status: os.stat_result) -> Stamp:
    return Stamp(
        status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    )
