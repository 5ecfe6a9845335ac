"""Arguments and macros of kernels that read weights in streams (`zinc.gpu.packing`)."""

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
    """Return the bytes from `a` to `b` modulo 2^64, as kernels add them to addresses."""
    return (b.address - a.address) % (1 << 64)


def same_layout(a: DeviceWeight, b: DeviceWeight) -> bool:
    """Return whether one kernel can read both weights, given the distance between them."""
    return (a.type, a.planes, a.rows, a.cols) == (b.type, b.planes, b.rows, b.cols)


def unit(w: DeviceWeight) -> int:
    """Return the elements of a unit, which a lane decodes at once."""
    return FLOATS.get(w.type, UNIT)


def takes_half(w: DeviceWeight, x: Ref) -> bool:
    """Return whether float16 is precise enough for a product of `x` with `w`.

    It is when one of them has at most 8 significant bits.
    """
    return x.format is RowFormat.Q8_32 or w.type is GGMLType.BF16


def format_defines(
    at: Addresses, w: DeviceWeight, x: Ref, cols: int, run: int = 0
) -> tuple[tuple[str, int], ...]:
    """Return the macros for a product of `w` with rows of `cols` columns of `x`.

    run: distance in bytes of such rows if a row of `x` holds several side by side (else 0).
    """
    q8 = x.format is RowFormat.Q8_32
    vectors = not q8 and cols % unit(w) == 0
    vectors = vectors and not (at.ref(x) | x.stride | run) % 16
    # Constant columns save index arithmetic on GPUs. On a CPU it matters more to compile less.
    known = cols if at.features.subgroup >= 16 else 0
    return (
        ("FORMAT", int(w.type)),
        ("ROWS_Q8", int(q8)),
        ("VECTORS", int(vectors)),
        ("COLS", known),
    )
