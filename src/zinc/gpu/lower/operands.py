"""What lowerings share: grids, alignment of rows, addresses of what may be absent."""

from __future__ import annotations

from typing import TypeVar

from zinc.backends.plans import Launch, Operand, Ref
from zinc.gpu.addresses import Addresses
from zinc.gpu.bucket import Bucket
from zinc.ops.values import Constant, Dim, RowFormat, Weight

# As kernels/step.slang numbers them.
DIMS = {Dim.TOKENS: 0, Dim.OUTPUTS: 1, Dim.SEQUENCES: 2, Dim.CONSTANT: 3}
CONSTANT = DIMS[Dim.CONSTANT]

T = TypeVar("T")


def operand(launch: Launch, name: str, kind: type[T]) -> T:
    """Return the operand `name` of a launch, which must be a `kind`."""
    found = launch.input(name)
    assert isinstance(found, kind), f"operand {name} of {launch.kernel} is {found}"
    return found


def rows(launch: Launch, name: str) -> Ref:
    """Return the operand `name` of a launch, which must be rows."""
    return operand(launch, name, Ref)


def rows_or_none(launch: Launch, name: str) -> Ref | None:
    """Return the optional operand `name` of a launch, rows if it is present."""
    found = launch.input(name)
    return found if isinstance(found, Ref) else None


def dim_code(dim: Dim, bucket: Bucket) -> int:
    """What a kernel passes to rowsOf: a bucket of one row needs no look at the step."""
    return CONSTANT if bucket.rows(dim) == 1 else DIMS[dim]


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def power_of_two(n: int) -> int:
    """The smallest one that is at least n."""
    return 1 << (n - 1).bit_length()


def is_q8(ref: Ref) -> int:
    """The macro Q8: whether rows are written as blocks of 8-bit numbers."""
    assert ref.format in (RowFormat.F32, RowFormat.Q8_32)
    return int(ref.format is RowFormat.Q8_32)


def in_vectors(at: Addresses, *refs: Ref | None) -> int:
    """The macro VECTORS: whether every float32 row starts on 16 bytes and has whole float4s."""
    return int(
        all(
            at.ref(ref) % 16 == 0 and ref.stride % 16 == 0 and ref.cols % 4 == 0
            for ref in refs
            if ref is not None and ref.format is RowFormat.F32
        )
    )


def vector_or_null(at: Addresses, x: Operand) -> int:
    """The address of a float32 vector, 0 when it is absent."""
    return at.vector(x) if isinstance(x, Weight | Constant) else 0


def ref_or_null(at: Addresses, x: Operand) -> tuple[int, int]:
    """(address, stride) of rows, zeros when they are absent."""
    return (at.ref(x), x.stride) if isinstance(x, Ref) else (0, 0)
