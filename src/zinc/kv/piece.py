"""The files of the prefix cache on disk: one a block of tokens, one a recurrent state.

    magic | length, crc32 of the head | head (JSON) | data: a block in every layer, or a state

A piece is named after the text that it ends (`chain`), so it means the same to every process, is
written once and never changes. Its head says whose child it is. Sizes follow from the cache that
reads it, never from the file. A file appears whole or not at all: it is written beside its name
and renamed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import struct
import tempfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

import numpy as np
import numpy.typing as npt

from zinc.kv.node import ROOT

MAGIC = b"zinc cache piece 2\n"
TEMPORARY = "tmp-"
BLOCK, STATE = ".kv", ".state"
_LENGTHS = struct.Struct("<II")
MAX_HEAD_BYTES = 1 << 16


class DamagedError(Exception):
    """A file is not what it claims to be. Never leaves zinc.kv."""


@dataclass(frozen=True, slots=True)
class Head:
    """What a piece is: `tokens` (int32 ids as bytes) behind the text that `parent` names.

    groups: those of whose layers it has a block, ascending (a text whose window has passed by may
    have none). is_state: a recurrent state instead. is_first: whether a text begins with it;
    `parent` then names the namespace. crc: of the data.
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
        return piece_name(self.parent, self.tokens, STATE if self.is_state else BLOCK)


def chain(parent: bytes, tokens: bytes) -> bytes:
    """What names a text: a hash of the name of what is before its last block, and that block."""
    return hashlib.blake2b(parent + tokens, digest_size=len(ROOT)).digest()


def piece_name(parent: bytes, tokens: bytes, suffix: str) -> str:
    return chain(parent, tokens).hex() + suffix


def write(folder: Path, key: str, piece: Head, data: bytes) -> None:
    """Writes a piece under its name; `piece.crc` is reckoned here. Raises OSError."""
    head = json.dumps(
        {
            "key": key,
            "parent": piece.parent.hex(),
            "tokens": base64.b64encode(piece.tokens).decode(),
            "groups": piece.groups,
            "state": piece.is_state,
            "first": piece.is_first,
            "crc": zlib.crc32(data),
        },
        separators=(",", ":"),
    ).encode()
    start = MAGIC + _LENGTHS.pack(len(head), zlib.crc32(head)) + head
    write_atomically(folder / piece.name, start, data)


def write_atomically(path: Path, *parts: bytes) -> None:
    """Write a file that only its owner can read; it appears whole or not at all. Raises OSError."""
    number, temporary = tempfile.mkstemp(prefix=TEMPORARY, dir=path.parent)
    try:
        with os.fdopen(number, "wb") as file:
            file.writelines(parts)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read_head(file: BufferedReader, key: str) -> Head:
    """Reads up to where the data begins. Raises DamagedError."""
    start = file.read(len(MAGIC) + _LENGTHS.size)
    if len(start) != len(MAGIC) + _LENGTHS.size or not start.startswith(MAGIC):
        raise DamagedError("it is not a cache file of this version")
    length, crc = _LENGTHS.unpack(start[len(MAGIC) :])
    if length > MAX_HEAD_BYTES:
        raise DamagedError("its head is too long")
    text = file.read(length)
    if len(text) != length or zlib.crc32(text) != crc:
        raise DamagedError("its head is damaged")
    try:
        fields = json.loads(text)
        head = Head(
            str(fields["key"]),
            bytes.fromhex(fields["parent"]),
            base64.b64decode(fields["tokens"], validate=True),
            tuple(int(g) for g in fields["groups"]),
            bool(fields["state"]),
            bool(fields["first"]),
            int(fields["crc"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DamagedError("its head cannot be read") from error
    if head.key != key:
        raise DamagedError("it is of another model or version")
    return head


def read_data(file: BufferedReader, head: Head, views: Iterable[npt.NDArray[np.uint8]]) -> None:
    """Fills the views. Raises DamagedError, with some of them overwritten."""
    crc = 0
    for view in views:
        if file.readinto(view.data) != view.nbytes:
            raise DamagedError("it ends too early")
        crc = zlib.crc32(view.data, crc)
    if crc != head.crc:
        raise DamagedError("its data is damaged")
    if file.read(1):
        raise DamagedError("it is longer than its data")
