"""The output file of a batch, which is also the record of the rows that are done.

Lines are appended whole. A process that is killed while it writes leaves at most one torn line, at
the end, which is removed when the file is opened again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from zinc.core.errors import RequestError
from zinc.server.batch.rows import is_failure

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_CHUNK_BYTES = 1 << 16


class Journal:
    """The output of a batch, open for appending.

    Opening repairs the end of the file and reads which rows are done. Custom ids are kept as
    digests of 16 bytes, about 100 bytes of memory for each row. retry_failed: remove the lines of
    failed rows, which then count as not done. n_done: rows that are done. n_failed: done rows that
    failed. Raises RequestError if the file is not the output of a batch, is not a regular file, or
    is open in another process, and OSError if it cannot be read and written.
    """

    def __init__(self, path: Path, retry_failed: bool = False) -> None:
        self._path = path
        self._file = _open(path)
        try:
            _cut_torn_line(self._file)
            if retry_failed:
                self._drop_failures()
            self.n_done = self.n_failed = 0
            self._ids: set[bytes] = set()
            self._lines: set[int] = set()
            for value in _values(path):
                self._note(value)
        except BaseException:
            self.close()
            raise

    def has_id(self, custom_id: str) -> bool:
        """Return whether the row with `custom_id` is done."""
        return digest(custom_id) in self._ids

    @property
    def ids(self) -> frozenset[bytes]:
        """The digests of the custom ids of rows that are done."""
        return frozenset(self._ids)

    def has_line(self, number: int) -> bool:
        """Return whether a line of the input without a usable custom_id is done."""
        return number in self._lines

    def append(self, line: bytes) -> None:
        """Append an output line. Raises OSError, and then leaves the file as it was."""
        end = os.fstat(self._file).st_size
        left = memoryview(line)
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, end)
            raise

    def close(self) -> None:
        """Write the file to the disk, and close it."""
        if self._file >= 0:
            with contextlib.suppress(OSError):  # some file systems cannot
                os.fsync(self._file)
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _note(self, value: dict[str, Any]) -> None:
        self.n_done += 1
        self.n_failed += is_failure(value)
        if isinstance(value.get("line"), int):
            self._lines.add(value["line"])
        else:
            self._ids.add(digest(value["custom_id"]))

    def _drop_failures(self) -> None:
        """Replace the file by one without the lines of failed rows, in one step."""
        kept = self._path.with_name(f"{self._path.name}.retry")
        with contextlib.suppress(FileNotFoundError):
            kept.unlink()
        file = _open(kept)
        try:
            with self._path.open("rb") as lines:
                for line, value in zip(lines, _values(self._path), strict=True):
                    if not is_failure(value):
                        os.write(file, line)
            os.fsync(file)
            os.replace(kept, self._path)
        except BaseException:
            os.close(file)
            raise
        os.close(self._file)
        self._file = file


def digest(custom_id: str) -> bytes:
    """Return 16 bytes that stand for a custom id."""
    return hashlib.blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _open(path: Path) -> int:
    """Open a file for appending and lock it.

    Raises RequestError if another process has it open, or if it is a pipe or a device.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise RequestError(
            f"cannot write answers to {path}",
            "it is a pipe or a device, and a later run has to read it",
            "choose another output file",
        )
    if not lock(file):
        os.close(file)
        raise RequestError(
            f"{path.name} is in use",
            "another process writes answers to it",
            "wait until it ends, or choose another output file",
        )
    return file


def lock(file: int) -> bool:
    """Lock a file until its descriptor is closed; return False if another process has it locked.

    Windows has no such locks: there it always succeeds.
    """
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


def _cut_torn_line(file: int) -> None:
    """Remove what follows the last line break."""
    end = os.fstat(file).st_size
    at = end
    while at > 0:
        start = max(0, at - _CHUNK_BYTES)
        os.lseek(file, start, os.SEEK_SET)
        found = os.read(file, at - start).rfind(b"\n")
        if found >= 0:
            at = start + found + 1
            break
        at = start
    if at == 0 < end and not _is_start_of_line(file):
        raise _foreign(1)
    if at < end:
        os.ftruncate(file, at)


def _is_start_of_line(file: int) -> bool:
    """Return whether a file without a line break begins as an output line does."""
    os.lseek(file, 0, os.SEEK_SET)
    known = b'{"id":"batch_req_'
    return known.startswith(os.read(file, len(known)))


def _values(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the parsed lines of an output file. Raises RequestError for a foreign line."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                value = json.loads(line)
                is_known = "error" in value and "response" in value
                if not is_known or not isinstance(value.get("line", value["custom_id"]), int | str):
                    raise ValueError
            except (ValueError, TypeError, KeyError):
                raise _foreign(number) from None
            yield value


def _foreign(number: int) -> RequestError:
    return RequestError(
        "the output file has other contents",
        f"its line {number} is not the answer of a batch",
        "choose another output file",
    )
