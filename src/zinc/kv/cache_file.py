"""Format of the prefix cache's files: one for each block of tokens and each recurrent state.

    magic | length and crc32 of the header | header (JSON) | data of the block or state, all layers

A file is named by the digest of the text that it ends, so its name means the same to every process;
it is written once and never changes. The header names its parent. Sizes come from the cache that
reads the file, never from the file itself. Files are written under a temporary name and renamed, so
a file is either complete or absent.
"""

from __future__ import annotations

import base64
import json
import os
import struct
import tempfile
import zlib
from collections.abc import Iterable
from io import BufferedIOBase
from pathlib import Path

import numpy as np
import numpy.typing as npt

from zinc.core.dataclass import dataclass
from zinc.kv.node import text_digest

MAGIC = b"zinc cache piece 2\n"
TEMPORARY = "tmp-"
BLOCK, STATE = ".kv", ".state"
_LENGTHS = struct.Struct("<II")
MAX_HEADER_BYTES = 1 << 16


class DamagedError(Exception):
    """A cache file is damaged or foreign. Never leaves zinc.kv."""


@dataclass(frozen=True, slots=True)
class Header:
    """Header of a file with the data of `tokens` (int32 ids as bytes).

    key: identifies the model and cache layout. parent: digest of the text before the tokens.
    groups: groups whose blocks are in the file, ascending; groups with a sliding window may be
    missing. is_state: the file has a recurrent state in place of blocks. is_first: no tokens come
    before; `parent` is then the digest of the namespace. crc: crc32 of the data.
    """

    key: str
    parent: bytes
    tokens: bytes
    groups: tuple[int, ...] = ()
    is_state: bool = False
    is_first: bool = False
    crc: int = 0

    @property
    def name(self) -> str:
        """Name of the file."""
        return file_name(self.parent, self.tokens, STATE if self.is_state else BLOCK)


def file_name(parent: bytes, tokens: bytes, suffix: str) -> str:
    """Return the name of a file; `suffix` is BLOCK or STATE."""
    return text_digest(parent, tokens).hex() + suffix


def file_start(key: str, header: Header, data: bytes) -> bytes:
    """Return what precedes `data` in a file with `header`, whose `crc` is computed from `data`."""
    text = json.dumps(
        {
            "key": key,
            "parent": header.parent.hex(),
            "tokens": base64.b64encode(header.tokens).decode(),
            "groups": header.groups,
            "state": header.is_state,
            "first": header.is_first,
            "crc": zlib.crc32(data),
        },
        separators=(",", ":"),
    ).encode()
    return MAGIC + _LENGTHS.pack(len(text), zlib.crc32(text)) + text


def write_file(folder: Path, key: str, header: Header, data: bytes) -> None:
    """Write a file with `header` and `data`. Raises OSError."""
    write_atomically(folder / header.name, file_start(key, header, data), data)


def write_atomically(path: Path, *parts: bytes) -> None:
    """Write a file that only its owner can read, completely or not at all. Raises OSError."""
    number, temporary = tempfile.mkstemp(prefix=TEMPORARY, dir=path.parent)
    try:
        with os.fdopen(number, "wb") as file:
            file.writelines(parts)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read_header(file: BufferedIOBase, key: str) -> Header:
    """Read the header; the file is then at its data. Raises DamagedError."""
    start = file.read(len(MAGIC) + _LENGTHS.size)
    if len(start) != len(MAGIC) + _LENGTHS.size or not start.startswith(MAGIC):
        raise DamagedError("it is not a cache file of this version")
    length, crc = _LENGTHS.unpack(start[len(MAGIC) :])
    if length > MAX_HEADER_BYTES:
        raise DamagedError("its header is too long")
    text = file.read(length)
    if len(text) != length or zlib.crc32(text) != crc:
        raise DamagedError("its header is damaged")
    try:
        fields = json.loads(text)
        header = Header(
            str(fields["key"]),
            bytes.fromhex(fields["parent"]),
            base64.b64decode(fields["tokens"], validate=True),
            tuple(int(g) for g in fields["groups"]),
            bool(fields["state"]),
            bool(fields["first"]),
            int(fields["crc"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DamagedError("its header cannot be read") from error
    if header.key != key:
        raise DamagedError("it belongs to another model or version")
    return header


def read_data(file: BufferedIOBase, header: Header, views: Iterable[npt.NDArray[np.uint8]]) -> None:
    """Read the data into the views. Raises DamagedError, after overwriting some of them."""
    crc = 0
    for view in views:
        if file.readinto(view.data) != view.nbytes:
            raise DamagedError("it is too short")
        crc = zlib.crc32(view.data, crc)
    if crc != header.crc:
        raise DamagedError("its data is damaged")
    if file.read(1):
        raise DamagedError("it is longer than its data")
