"""Lowerings of linear and linear_glu for 5 to 16 rows of x on tensor cores (kernels/gemm_few.cu).

The matrices of a linear that have one format share a dispatch. Those of several formats run side by
side, so their blocks divide the compute units.
"""

from __future__ import annotations

from collections.abc import Sequence

from zinc.backends.cuda import tiles
from zinc.backends.cuda.lower import gemv
from zinc.backends.cuda.lower.parts import (
    Output,
    Part,
    arguments_of,
    by_format,
    defines_of,
    gated_part,
    key_of,
    parts_of,
)
from zinc.backends.plans import Launch, Ref
from zinc.gpu.addresses import Addresses
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.lower.operands import ceil_div, rows
from zinc.gpu.lower.weights import format_defines, same_layout, weight_of
from zinc.ops.values import RowFormat

FEWEST_ROWS, MOST_ROWS = gemv.MAX_ROWS + 1, 16  # rows of x


def takes(launch: Launch, at: Addresses, bucket: Bucket) -> bool:
    """Return whether the kernel takes the rows of a launch, which need no batch invariance."""
    x = rows(launch, "x")
    is_few = FEWEST_ROWS <= bucket.rows(x.dim) <= MOST_ROWS
    if not is_few or x.format is not RowFormat.Q8_32 or at.features.batch_invariant:
        return False
    if launch.kernel != "linear_glu":
        return True
    gate, up = (weight_of(at, launch.input(name)) for name in ("gate", "up"))
    return same_layout(gate, up)


def linear(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    x, parts = rows(launch, "x"), parts_of(launch, at)
    n_tiles = sum(ceil_div(part.rows, tiles.FEW_TILE_ROWS) for part in parts)
    return [_dispatch(at, bucket, x, group, n_tiles, Output()) for group in by_format(parts)]


def linear_glu(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    part = gated_part(launch, at)
    n_tiles = ceil_div(part.rows, tiles.FEW_TILE_ROWS)
    return [_dispatch(at, bucket, rows(launch, "x"), (part,), n_tiles, Output.of_gated(launch))]


def _dispatch(
    at: Addresses, bucket: Bucket, x: Ref, parts: Sequence[Part], n_tiles: int, output: Output
) -> Dispatch:
    """Return the product of `x` with the matrices of `parts`, which have one format.

    n_tiles: tiles of all matrices that are multiplied side by side.
    """
    key = key_of("gemm_few", parts, bucket.rows(x.dim), output)
    tile = tiles.gemm_few(at.features, key)
    arguments = arguments_of(at, bucket, x, parts, tiles.FEW_TILE_ROWS, output)
    shares = tile.shares(at.features, key, n_tiles)
    in_round = shares.stripe * shares.round
    defines = (
        *format_defines(at, parts[0].w, x, key.cols),
        *defines_of(parts, tiles.FEW_TILE_ROWS, output),
        *tile.defines,
        ("ROUND", in_round),
    )
    kernel = KernelVariant("gemm_few", defines, in_round * tile.tile_bytes(key))
    return Dispatch(kernel, arguments, (shares.blocks(arguments.tiles), 1, 1))
