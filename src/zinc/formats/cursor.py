"""Cursor over the header of a file, which checks every size against the file's.

It never reads, or lets a caller allocate, past the end of the file. Each read takes the name of the
field, for the message of a FormatError.
"""

from __future__ import annotations

from zinc.core.errors import FormatError
from zinc.formats.metadata import Header
from zinc.formats.source import REFETCH, Source
from zinc.formats.strings import find_strings

MAX_NAME_BYTES = 65_535
# Metadata and tensor table together. The largest vocabularies take 20 MB.
MAX_HEADER_BYTES = 256 << 20
_FIRST_READ_BYTES = 256 << 10
_STRINGS = 1 << 20  # to look for together, which limits the memory for their positions


class Cursor:
    """A position in a file; the file is read into `header` as far as needed.

    Methods raise FormatError for a position beyond the end of the file or `MAX_HEADER_BYTES`.
    """

    def __init__(self, source: Source) -> None:
        self.path = source.path
        self.source = source
        self.size = source.size
        self.header = Header()
        self.position = 0

    def corrupt(self, why: str) -> FormatError:
        """Return the error for a file whose header is wrong."""
        return FormatError(f"{self.path} is corrupt", why, REFETCH)

    def truncated(self, what: str, n_missing: int) -> FormatError:
        """Return the error for a file that ends before `what` does."""
        why = f"it has {self.size} bytes and {what} needs {n_missing} more"
        return FormatError(f"{self.path} is truncated or corrupt", why, REFETCH)

    def take(self, n_bytes: int, what: str) -> int:
        """Move past `n_bytes`, which are then in `header`, and return where they start."""
        start = self.position
        self.load(start + n_bytes, what)
        self.position = start + n_bytes
        return start

    def load(self, end: int, what: str) -> None:
        """Read the file into `header` at least up to byte `end`, for the field `what`."""
        data = self.header.data
        if end <= len(data):
            return
        if end > self.size:
            raise self.truncated(what, end - self.size)
        if end > MAX_HEADER_BYTES:
            raise self.corrupt(f"{what} ends after byte {MAX_HEADER_BYTES} of the header")
        # Read in growing steps, so that the copies add up to little more than the header.
        end = min(self.size, max(end, 4 * len(data), _FIRST_READ_BYTES))
        self.header.data = data + self.source.read(len(data), end - len(data), what)

    def u32(self, what: str) -> int:
        """Read a 32-bit unsigned integer."""
        return int.from_bytes(self.raw(4, what), "little")

    def u64(self, what: str) -> int:
        """Read a 64-bit unsigned integer."""
        return int.from_bytes(self.raw(8, what), "little")

    def raw(self, n_bytes: int, what: str) -> bytes:
        """Read some bytes."""
        start = self.take(n_bytes, what)
        return self.header.data[start : self.position]

    def string(self, what: str) -> bytes:
        """Read a string: a 64-bit length and that many bytes."""
        return self.raw(self.u64(what), what)

    def name(self, what: str) -> str:
        """Read a string of 1 to `MAX_NAME_BYTES` bytes of printable UTF-8."""
        n_bytes = self.u64(what)
        if not 0 < n_bytes <= MAX_NAME_BYTES:
            raise self.corrupt(f"the name of a {what} has {n_bytes} bytes")
        raw = self.raw(n_bytes, what)
        name = raw.decode("utf-8", "replace")
        if "\ufffd" in name or not name.isprintable():  # names are printed to terminals
            raise self.corrupt(f"the name of a {what} is not printable UTF-8: {raw[:40]!r}")
        return name

    def count(self, noun: str, min_bytes: int, highest: int) -> int:
        """Read a count of items that must fit in the rest of the file, `min_bytes` or more each."""
        count = self.u64(f"the count of {noun}")
        most = min(highest, (self.size - self.position) // min_bytes)
        if count > most:
            raise self.corrupt(f"it claims {count} {noun}, and at most {most} are possible")
        return count

    def skip_strings(self, count: int, what: str) -> None:
        """Move past `count` strings without copying them.

        Lengths are unsigned, so a wrong one moves the position past the end of the file and the
        next read fails.
        """
        if count * 8 > self.size - self.position:
            raise self.truncated(what, self.position + count * 8 - self.size)
        position = self.position
        while count:
            self.load(position + 8, what)
            found, position = find_strings(self.header.data, position, min(count, _STRINGS))
            count -= len(found)
        self.load(position, what)
        self.position = position
