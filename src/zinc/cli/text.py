"""Text input and output: prompts from arguments, stdin and files; tables and units."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import BinaryIO

from zinc.core.errors import RequestError, next_step

# More than any prompt or evaluation text; protects against endless device files.
MAX_TEXT_BYTES = 1 << 28


def read_stdin() -> str:
    """Return all of standard input. Raises RequestError if it is not UTF-8."""
    return _read(sys.stdin.buffer, "standard input")


def read_file(path: str) -> str:
    """Return the text of a file. Raises RequestError if it cannot be read or is not UTF-8."""
    if path == "-":
        return read_stdin()
    try:
        with open(path, "rb") as file:
            return _read(file, path)
    except OSError as error:
        why = error.strerror or str(error)
        raise RequestError(f"cannot read {path}", why, next_step(error)) from error


def _read(file: BinaryIO, name: str) -> str:
    data = file.read(MAX_TEXT_BYTES + 1)
    if len(data) > MAX_TEXT_BYTES:
        raise RequestError(
            f"{name} is too large",
            f"it has more than {MAX_TEXT_BYTES:,} bytes",
            "split it into smaller texts",
        )
    try:
        # A byte order mark is not part of the prompt.
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"{name} is not UTF-8 text",
            f"byte {error.start + 1:,} is 0x{error.object[error.start]:02x}",
            "convert it, for example with iconv",
        ) from error


def size(n_bytes: float) -> str:
    """Return a number of bytes in decimal units: 18.3 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.1f} TB"


def plain(text: str, limit: int) -> str:
    """Return `text` as one line of at most `limit` characters, control characters escaped."""
    shown = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text[:limit])
    return shown if len(text) <= limit and len(shown) <= limit else f"{shown[: limit - 3]}..."


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return rows as aligned text columns. A header that ends in "|" is right-aligned."""
    cells = [[_cell(value) for value in row] for row in rows]
    right = [name.endswith("|") for name in header]
    names = [name.rstrip("| ") for name in header]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    lines = []
    for row in (names, *cells):
        padded = (
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(row, widths, right, strict=True)
        )
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
