"""Lowerings of linear and linear_glu for 5 to 16 rows of x on tensor cores (kernels/gemm_few.cu).

The matrices of a linear that have one format share a dispatch. Those of several formats run side by
side, so their blocks divide the compute units.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from zinc.backends.cuda import tiles
from zinc.backends.cuda.lower import gemv
from zinc.backends.cuda.lower.parts import Part, arguments_of, gated_part, parts_of
from zinc.backends.plans import Launch, Ref
from zinc.gpu.addresses import Addresses
from zinc.gpu.arguments.constants import ProductKind
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.lower.linear import NO_ACTIVATION, GatedActivation
from zinc.gpu.lower.operands import ceil_div, rows
from zinc.gpu.lower.weights import format_defines, same_layout, weight_of
from zinc.gpu.tuned import TileKey
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
    x = rows(launch, "x")
    parts = sorted(parts_of(launch, at), key=lambda part: part.w.type)
    n_tiles = sum(ceil_div(part.rows, tiles.FEW_TILE_ROWS) for part in parts)
    return [
        _dispatch(at, bucket, x, tuple(group), ProductKind.LINEAR, n_tiles)
        for _, group in groupby(parts, key=lambda part: part.w.type)
    ]


def linear_glu(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    x, out, part = rows(launch, "x"), launch.outputs[0], gated_part(launch, at)
    n_tiles, activation = ceil_div(part.rows, tiles.FEW_TILE_ROWS), GatedActivation.of(launch)
    return [_dispatch(at, bucket, x, (part,), ProductKind.GLU, n_tiles, activation, out.format)]


def _dispatch(
    at: Addresses,
    bucket: Bucket,
    x: Ref,
    parts: Sequence[Part],
    kind: ProductKind,
    n_tiles: int,
    activation: GatedActivation = NO_ACTIVATION,
    y_format: RowFormat = RowFormat.F32,
) -> Dispatch:
    """Return the product of `x` with the matrices of `parts`, which have one format.

    n_tiles: tiles of all matrices that are multiplied side by side.
    """
    w, stores_blocks = parts[0].w, y_format is not RowFormat.F32
    key = TileKey(
        "gemm_few",
        w.type,
        sum(part.rows for part in parts),
        w.cols,
        bucket.rows(x.dim),
        weights=2 if kind is ProductKind.GLU else 1,
        stores_blocks=stores_blocks,
    )
    tile = tiles.gemm_few(at.features, key)
    arguments = arguments_of(at, bucket, x, parts, tiles.FEW_TILE_ROWS, activation)
    shares = tile.shares(at.features, key, n_tiles)
    in_round = shares.stripe * shares.round
    defines = (
        *format_defines(at, w, x, w.cols),
        ("PARTS", len(parts)),
        ("PRODUCT", kind),
        ("ACTIVATION", activation.fn),
        ("OUT_Q8", int(stores_blocks)),
        ("WHOLE", int(all(part.rows % tiles.FEW_TILE_ROWS == 0 for part in parts))),
        *tile.defines,
        ("ROUND", in_round),
    )
    kernel = KernelVariant("gemm_few", defines, in_round * tile.tile_bytes(key))
    return Dispatch(kernel, arguments, (shares.blocks(arguments.tiles), 1, 1))
