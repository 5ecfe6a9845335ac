"""Layouts of all ggml tensor types, which decoders, encoders and kernels share.

A tensor row is a sequence of blocks; a block stores `block_size` elements in `block_bytes` bytes.
Fields are listed in file order, without padding and little-endian, so a layout is also a numpy
structured dtype: `data.view(BLOCKS[t].dtype)["qs"]` is a zero-copy view of one field of all blocks.
Field names: d = scale, dmin = scale of the minimums, m = minimum, qs/ql = low bits of the quants,
qh = high bits, scales = packed scales of the sub-blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from functools import cached_property

import numpy as np

from zinc.core.dataclass import dataclass
from zinc.core.errors import ModelError

SUPER = 256
"""Elements of a super-block, the block of the K, IQ and TQ types."""


class GGMLType(IntEnum):
    """Tensor types with their ids in GGUF files; ggml has withdrawn the missing ids."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q8_1 = 9
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    Q8_K = 15
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    IQ1_M = 29
    BF16 = 30
    TQ1_0 = 34
    TQ2_0 = 35
    MXFP4 = 39
    NVFP4 = 40
    Q1_0 = 41
    Q2_0 = 42


@dataclass(frozen=True)
class Field:
    """A field of a block: `count` values of `dtype` at byte `offset`."""

    name: str
    dtype: np.dtype[np.generic]
    count: int
    offset: int

    @property
    def n_bytes(self) -> int:
        return self.dtype.itemsize * self.count


@dataclass(frozen=True)
class BlockLayout:
    """Layout of a block: `block_size` elements in `block_bytes` bytes."""

    type: GGMLType
    block_size: int
    fields: tuple[Field, ...]

    @property
    def name(self) -> str:
        return self.type.name

    @cached_property
    def block_bytes(self) -> int:
        return sum(field.n_bytes for field in self.fields)

    @property
    def bits_per_element(self) -> float:
        return 8 * self.block_bytes / self.block_size

    @property
    def is_quantised(self) -> bool:
        """Whether a block has several elements; rows must then be whole blocks."""
        return self.block_size > 1

    @cached_property
    def dtype(self) -> np.dtype[np.void]:
        """The block as a packed numpy structure; fields of one value are scalars."""
        return np.dtype(
            [
                (f.name, f.dtype, (f.count,)) if f.count > 1 else (f.name, f.dtype)
                for f in self.fields
            ]
        )

    def __getitem__(self, name: str) -> Field:
        for field in self.fields:
            if field.name == name:
                return field
        raise KeyError(f"{self.name} has no field {name}")


def _fields(spec: tuple[tuple[str, str, int], ...]) -> Iterator[Field]:
    offset = 0
    for name, code, count in spec:
        field = Field(name, np.dtype(f"<{code}"), count, offset)
        yield field
        offset += field.n_bytes


def _layout(
    type: GGMLType, block_size: int, *spec: tuple[str, str, int]
) -> tuple[GGMLType, BlockLayout]:
    return type, BlockLayout(type, block_size, tuple(_fields(spec)))


def _scalar(type: GGMLType, code: str) -> tuple[GGMLType, BlockLayout]:
    return _layout(type, 1, ("value", code, 1))


_T = GGMLType
_D = ("d", "f2", 1)
_DMIN = ("dmin", "f2", 1)

BLOCKS: dict[GGMLType, BlockLayout] = dict(
    (
        _scalar(_T.F32, "f4"),
        _scalar(_T.F16, "f2"),
        # numpy has no bfloat16; it is the upper half of the bits of a float32.
        _scalar(_T.BF16, "u2"),
        _scalar(_T.F64, "f8"),
        _scalar(_T.I8, "i1"),
        _scalar(_T.I16, "i2"),
        _scalar(_T.I32, "i4"),
        _scalar(_T.I64, "i8"),
        _layout(_T.Q1_0, 128, _D, ("qs", "u1", 16)),
        _layout(_T.Q2_0, 64, _D, ("qs", "u1", 16)),
        _layout(_T.Q4_0, 32, _D, ("qs", "u1", 16)),
        _layout(_T.Q4_1, 32, _D, ("m", "f2", 1), ("qs", "u1", 16)),
        _layout(_T.Q5_0, 32, _D, ("qh", "u1", 4), ("qs", "u1", 16)),
        _layout(_T.Q5_1, 32, _D, ("m", "f2", 1), ("qh", "u1", 4), ("qs", "u1", 16)),
        _layout(_T.Q8_0, 32, _D, ("qs", "i1", 32)),
        # Activations only: s = d * sum(qs).
        _layout(_T.Q8_1, 32, _D, ("s", "f2", 1), ("qs", "i1", 32)),
        _layout(_T.Q2_K, SUPER, ("scales", "u1", 16), ("qs", "u1", 64), _D, _DMIN),
        _layout(_T.Q3_K, SUPER, ("qh", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), _D),
        _layout(_T.Q4_K, SUPER, _D, _DMIN, ("scales", "u1", 12), ("qs", "u1", 128)),
        _layout(
            _T.Q5_K, SUPER, _D, _DMIN, ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)
        ),
        _layout(_T.Q6_K, SUPER, ("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), _D),
        # Activations only: bsums = sums of 16 quants each.
        _layout(_T.Q8_K, SUPER, ("d", "f4", 1), ("qs", "i1", 256), ("bsums", "i2", 16)),
        _layout(_T.IQ1_S, SUPER, _D, ("qs", "u1", 32), ("qh", "u2", 8)),
        _layout(_T.IQ1_M, SUPER, ("qs", "u1", 32), ("qh", "u1", 16), ("scales", "u2", 4)),
        _layout(_T.IQ2_XXS, SUPER, _D, ("qs", "u4", 16)),
        _layout(_T.IQ2_XS, SUPER, _D, ("qs", "u2", 32), ("scales", "u1", 8)),
        _layout(
            _T.IQ2_S,
            SUPER,
            _D,
            ("qs", "u1", 32),
            ("signs", "u1", 32),
            ("qh", "u1", 8),
            ("scales", "u1", 8),
        ),
        _layout(_T.IQ3_XXS, SUPER, _D, ("qs", "u1", 64), ("scales", "u4", 8)),
        _layout(
            _T.IQ3_S,
            SUPER,
            _D,
            ("qs", "u1", 64),
            ("qh", "u1", 8),
            ("signs", "u1", 32),
            ("scales", "u1", 4),
        ),
        _layout(_T.IQ4_NL, 32, _D, ("qs", "u1", 16)),
        _layout(
            _T.IQ4_XS, SUPER, _D, ("scales_h", "u2", 1), ("scales_l", "u1", 4), ("qs", "u1", 128)
        ),
        _layout(_T.TQ1_0, SUPER, ("qs", "u1", 48), ("qh", "u1", 4), _D),
        _layout(_T.TQ2_0, SUPER, ("qs", "u1", 64), _D),
        # One E8M0 scale (a power of two) for 32 E2M1 values.
        _layout(_T.MXFP4, 32, ("e", "u1", 1), ("qs", "u1", 16)),
        # One unsigned E4M3 scale for each of four groups of 16 E2M1 values.
        _layout(_T.NVFP4, 64, ("d", "u1", 4), ("qs", "u1", 32)),
    )
)


def row_bytes(type: GGMLType, n_elements: int) -> int:
    """Return the bytes of a row. Raises ModelError unless it is a whole number of blocks."""
    layout = BLOCKS[type]
    n_blocks, rest = divmod(n_elements, layout.block_size)
    if rest or n_elements < 0:
        raise ModelError(
            f"a row of {n_elements} elements cannot be {layout.name}",
            f"its blocks hold {layout.block_size} elements",
        )
    return n_blocks * layout.block_bytes
