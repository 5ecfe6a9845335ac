"""Helpers for lowerings: operands by name, grid sizes, and addresses of optional operands."""

from __future__ import annotations

from typing import TypeVar

from zinc.backends.plans import Launch, Operand, Ref
from zinc.gpu.addresses import Addresses, DeviceKV
from zinc.gpu.arguments.constants import DimCode
from zinc.gpu.bucket import Bucket
from zinc.ops.values import Constant, Dim, KVState, RowFormat, Weight

DIMS = {dim: DimCode[dim.name] for dim in Dim}

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
    """Return the number of `dim` for `rowsOf` in kernels.

    A dim of at most one row is CONSTANT, so kernels need not read the step's header.
    """
    return DimCode.CONSTANT if bucket.rows(dim) == 1 else DIMS[dim]


def power_of_two(n: int) -> int:
    """Return the smallest power of two that is at least `n`."""
    return 1 << (n - 1).bit_length()


def is_q8(ref: Ref) -> int:
    """Return the macro Q8: 1 if rows are stored as blocks of 8-bit numbers."""
    assert ref.format in (RowFormat.F32, RowFormat.Q8_32)
    return int(ref.format is RowFormat.Q8_32)


def in_vectors(at: Addresses, *refs: Ref | None) -> int:
    """Return the macro VECTORS: 1 if all float32 rows are aligned and made of whole float4s."""
    return int(
        all(
            at.ref(ref) % 16 == 0 and ref.stride % 16 == 0 and ref.cols % 4 == 0
            for ref in refs
            if ref is not None and ref.format is RowFormat.F32
        )
    )


def vector_or_null(at: Addresses, x: Operand) -> int:
    """Return the address of a float32 vector, 0 if it is absent."""
    return at.vector(x) if isinstance(x, Weight | Constant) else 0


def ref_or_null(at: Addresses, x: Operand) -> tuple[int, int]:
    """Return (address, stride) of rows, zeros if they are absent."""
    return (at.ref(x), x.stride) if isinstance(x, Ref) else (0, 0)


def split_scratch(at: Addresses, splits: int, n_sums: int, n_tiles: int) -> tuple[int, int]:
    """Return the addresses of the partial sums and counters of a split-K GEMM; zeros for one split.

    n_sums: float32 sums of each split. n_tiles: output tiles, whose workgroups share a counter.
    """
    if splits == 1:
        return 0, 0
    return at.scratch.take(4 * splits * n_sums), at.counters.take(n_tiles)


def is_bidirectional(launch: Launch) -> bool:
    """Return whether tokens of an attention also see later ones, as in encoders."""
    return not launch.attributes.get("causal", 1)


def alibi(launch: Launch) -> tuple[tuple[str, int], ...]:
    """Return the macro ALIBI if attention lowers its scores with the distance, else nothing."""
    return () if launch.input("slopes") is None else (("ALIBI", 1),)


def chunked(launch: Launch) -> tuple[tuple[str, int], ...]:
    """Return the macro CHUNKED if windows of attention follow each other, else nothing."""
    return (("CHUNKED", 1),) if launch.attributes.get("chunked") else ()


def is_capped(launch: Launch) -> int:
    """Return the macro SOFTCAP: 1 if attention caps its scores."""
    return int(float(launch.attributes["softcap"]) > 0)


def values_of(state: KVState, cache: DeviceKV) -> tuple[int, int]:
    """Return the address of a layer's values and the bytes of a block that holds them."""
    if state.v_from_k:
        return cache.keys, cache.key_block_bytes
    return cache.values, cache.value_block_bytes
