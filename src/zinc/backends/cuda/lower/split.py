"""Lowerings of linear and linear_glu for 17 to 64 rows of x as split-K GEMM (gemm_split.cu).

The matrices of a linear that have one format share a dispatch. Those of several formats run side by
side, so their blocks divide the compute units by the work of each.
"""

from __future__ import annotations

from collections.abc import Sequence

from zinc.backends.cuda.lower.half_rows import HalfRows, converted
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
from zinc.backends.cuda.tiles import gemm_split
from zinc.backends.cuda.tiles.common import GROUP_COLS
from zinc.backends.plans import Launch, Ref
from zinc.gpu.addresses import Addresses
from zinc.gpu.arguments.constants import ProductKind
from zinc.gpu.arguments.structs import SplitArguments
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.features import Features
from zinc.gpu.lower.operands import rows
from zinc.gpu.lower.weights import format_defines, same_layout, weight_of
from zinc.gpu.tuned import TileKey
from zinc.ops.values import RowFormat


def takes(launch: Launch, at: Addresses, bucket: Bucket) -> bool:
    """Return whether the kernel takes the rows of a launch, which need no batch invariance."""
    x = rows(launch, "x")
    if x.format is not RowFormat.Q8_32 or at.features.batch_invariant:
        return False
    if launch.kernel == "linear_glu":
        weights = [weight_of(at, launch.input(name)) for name in ("gate", "up")]
        if not same_layout(*weights):
            return False
    else:
        n_parts = len(launch.outputs)
        weights = [weight_of(at, launch.input("weight", part)) for part in range(n_parts)]
    n_rows = sum(w.planes * w.rows for w in weights)
    return gemm_split.takes_split(at.features, n_rows, weights[0].cols, bucket.rows(x.dim))


def linear(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    """Return the dispatches of a linear."""
    return _dispatches(at, bucket, rows(launch, "x"), parts_of(launch, at), Output())


def linear_glu(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    """Return the dispatches of a gated product whose weights have one layout."""
    part, output = gated_part(launch, at), Output.of_gated(launch)
    return _dispatches(at, bucket, rows(launch, "x"), [part], output)


def _dispatches(
    at: Addresses, bucket: Bucket, x: Ref, parts: Sequence[Part], output: Output
) -> list[Dispatch]:
    n_x, groups = bucket.rows(x.dim), by_format(parts)
    keys = [key_of("gemm_split", group, n_x, output) for group in groups]
    part_rows = [[part.rows for part in group] for group in groups]
    tiles, blocks = _tiles_beside(at.features, keys, part_rows)
    cols = parts[0].w.cols
    conversion, half = converted(x, cols, 1, tiles[0].batch, at, bucket, multiple=GROUP_COLS)
    products = [
        _dispatch(at, bucket, x, half, group, tile, output, n_blocks, waits=i == 0)
        for i, (group, tile, n_blocks) in enumerate(zip(groups, tiles, blocks, strict=True))
    ]
    return [conversion, *products]


def _tiles_beside(
    features: Features, keys: Sequence[TileKey], part_rows: Sequence[Sequence[int]]
) -> tuple[list[gemm_split.SplitTile], list[int]]:
    """Return the tile and the blocks of each product, for products that run side by side.

    Each has a share of the compute units by its rows. part_rows: rows of the matrices of a product.
    """
    n_rows, most_blocks = sum(key.rows for key in keys), gemm_split.MOST_BLOCKS
    tiles, blocks = [], []
    for key, n in zip(keys, part_rows, strict=True):
        units = max(1, round(features.compute_units * key.rows / n_rows))
        tile = gemm_split.choose_tile(features, key, n, units, most_blocks)
        tiles.append(tile)
        blocks.append(tile.blocks(key.weights, n, units))
        most_blocks = min(most_blocks, tile.cluster)  # larger clusters may not fit beside these
    return tiles, blocks


def _dispatch(
    at: Addresses,
    bucket: Bucket,
    x: Ref,
    half: HalfRows,
    parts: Sequence[Part],
    tile: gemm_split.SplitTile,
    output: Output,
    blocks: int,
    waits: bool,
) -> Dispatch:
    """Return the product of `half`, the rows `x` converted, with `parts`, which have one format.

    waits: the product waits for the conversion.
    """
    cols = parts[0].w.cols
    weights = 2 if output.kind is ProductKind.GLU else 1
    tile_rows = tile.rows(weights)
    arguments = arguments_of(at, bucket, x, parts, tile_rows, output)
    operands = SplitArguments(product=arguments, x=half.address, inverses=half.inverses)
    defines = (
        *format_defines(at, parts[0].w, x, cols),
        *defines_of(parts, tile_rows, output),
        *tile.defines,
    )
    kernel = KernelVariant("gemm_split", defines, tile.shared_bytes(weights))
    return Dispatch(kernel, operands, (blocks, 1, 1), waits)
