"""Reading and writing of SPIR-V modules as lists of instructions.

The numbers are those of the SPIR-V specification.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum, IntFlag
from typing import NamedTuple

HEADER_WORDS, BOUND = 5, 3  # words of the header; index of the word that bounds all ids


class Op(IntEnum):
    """Operations of instructions."""

    NAME = 5
    LINE = 8
    MEMORY_MODEL = 14
    ENTRY_POINT = 15
    EXECUTION_MODE = 16
    CAPABILITY = 17
    TYPE_INT = 21
    TYPE_STRUCT = 30
    TYPE_POINTER = 32
    CONSTANT = 43
    FUNCTION = 54
    FUNCTION_PARAMETER = 55
    FUNCTION_CALL = 57
    VARIABLE = 59
    LOAD = 61
    STORE = 62
    COPY_MEMORY = 63
    COPY_MEMORY_SIZED = 64
    ACCESS_CHAIN = 65
    IN_BOUNDS_ACCESS_CHAIN = 66
    PTR_ACCESS_CHAIN = 67
    IN_BOUNDS_PTR_ACCESS_CHAIN = 70
    DECORATE = 71
    MEMBER_DECORATE = 72
    COMPOSITE_CONSTRUCT = 80
    COMPOSITE_EXTRACT = 81
    COPY_OBJECT = 83
    CONVERT_U_TO_PTR = 120
    BITCAST = 124
    F_MUL = 133
    SELECT = 169
    CONTROL_BARRIER = 224
    MEMORY_BARRIER = 225
    PHI = 245
    LABEL = 248
    NO_LINE = 317
    COOPERATIVE_MATRIX_LOAD = 4457
    COOPERATIVE_MATRIX_STORE = 4458


class StorageClass(IntEnum):
    WORKGROUP = 4
    PHYSICAL_STORAGE_BUFFER = 5349


class Capability(IntEnum):
    VULKAN_MEMORY_MODEL = 5345
    VULKAN_MEMORY_MODEL_DEVICE_SCOPE = 5346


class Decoration(IntEnum):
    BLOCK = 2
    VOLATILE = 21
    COHERENT = 23
    NON_WRITABLE = 24
    OFFSET = 35
    NO_CONTRACTION = 42


class MemoryAccess(IntFlag):
    """Flags of a load or store."""

    ALIGNED = 0x2
    MAKE_POINTER_AVAILABLE = 0x8
    MAKE_POINTER_VISIBLE = 0x10
    NON_PRIVATE_POINTER = 0x20


# Flags that have an operand. The operands come in the order of the bits.
WITH_OPERAND = (
    MemoryAccess.ALIGNED,
    MemoryAccess.MAKE_POINTER_AVAILABLE,
    MemoryAccess.MAKE_POINTER_VISIBLE,
)


class Semantics(IntFlag):
    """Memory semantics of a barrier."""

    ACQUIRE = 0x2
    RELEASE = 0x4
    ACQUIRE_RELEASE = 0x8
    UNIFORM_MEMORY = 0x40  # buffers
    MAKE_AVAILABLE = 0x2000
    MAKE_VISIBLE = 0x4000


VULKAN_MODEL = 3
DEVICE_SCOPE = 1
LOCAL_SIZE = 17  # execution mode that states the size of a workgroup


class Instruction(NamedTuple):
    """An instruction: its operation, which need not be one of `Op`, and its operands."""

    op: int
    operands: list[int]


def instructions(code: bytes) -> Iterator[Instruction]:
    """Yield the instructions of a module."""
    words = struct.unpack_from(f"<{len(code) // 4}I", code)
    at = HEADER_WORDS
    while at < len(words) and (n := words[at] >> 16):
        yield Instruction(words[at] & 0xFFFF, list(words[at + 1 : at + n]))
        at += n


def bound(code: bytes) -> int:
    """Return the smallest number that is larger than every id of a module."""
    return int(struct.unpack_from("<I", code, 4 * BOUND)[0])


def assemble(code: bytes, bound: int, body: Iterable[Instruction]) -> bytes:
    """Return a module with the header of `code`, a new bound and new instructions."""
    words = [*struct.unpack_from(f"<{HEADER_WORDS}I", code)]
    words[BOUND] = bound
    for op, operands in body:
        words += [len(operands) + 1 << 16 | op, *operands]
    return struct.pack(f"<{len(words)}I", *words)


def text(words: Iterable[int]) -> str:
    """Return the string that a literal of these words begins with."""
    data = b"".join(word.to_bytes(4, "little") for word in words)
    return data.partition(b"\0")[0].decode()
