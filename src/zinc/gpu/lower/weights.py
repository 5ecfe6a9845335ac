"""What the kernels of products are told of a weight, and which variants read it."""

from __future__ import annotations

from zinc.backends.plans import Operand, Ref
from zinc.gpu.addresses import Addresses, DeviceWeight
from zinc.gpu.arguments.structs import Matrix
from zinc.gpu.packing import FLOATS, UNIT, offsets
from zinc.ops.values import RowFormat, Weight
from zinc.quant.blocks import GGMLType


def weight_of(at: Addresses, x: Operand) -> DeviceWeight:
    assert isinstance(x, Weight)
    return at.weight(x)


def matrix(w: DeviceWeight) -> Matrix:
    """Return the addresses of the streams of `w`."""
    streams = offsets(w.type, w.planes * w.rows, w.cols)
    return Matrix(q=w.address, h=w.address + streams.h, s=w.address + streams.s)


def distance(a: DeviceWeight, b: DeviceWeight) -> int:
    """Bytes from a to b as the kernels add them, modulo 2^64."""
    return (b.address - a.address) % (1 << 64)


def same_layout(a: DeviceWeight, b: DeviceWeight) -> bool:
    return (a.type, a.planes, a.rows, a.cols) == (b.type, b.planes, b.rows, b.cols)


def unit(w: DeviceWeight) -> int:
    """Elements that a lane decodes at a time."""
    return FLOATS.get(w.type, UNIT)


def takes_half(w: DeviceWeight, x: Ref) -> bool:
    """Whether products may round both sides to float16: they are known to 8 bits anyway."""
    return x.format is RowFormat.Q8_32 or w.type is GGMLType.BF16


def format_defines(
    at: Addresses, w: DeviceWeight, x: Ref, cols: int, run: int = 0
) -> tuple[tuple[str, int], ...]:
    """Macros for reading `w` against rows of `cols` columns that start at x, or at a run of it."""
    q8 = x.format is RowFormat.Q8_32
    vectors = not q8 and cols % unit(w) == 0
    vectors = vectors and not (at.ref(x) | x.stride | run) % 16
    # Constant columns save index arithmetic on GPUs; on a CPU fewer pipelines count for more.
    known = cols if at.features.subgroup >= 16 else 0
    return (
        ("FORMAT", int(w.type)),
        ("ROWS_Q8", int(q8)),
        ("VECTORS", int(vectors)),
        ("COLS", known),
    )
