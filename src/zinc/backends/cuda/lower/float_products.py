"""Lowerings of linear and linear_glu with float weights and several rows of x, on tensor cores.

The kernel reads float32 rows in vectors of 16 bytes. Other rows, few rows, and batch-invariant mode
keep the shared lowerings.
"""

from __future__ import annotations

from collections.abc import Sequence

from zinc.backends.cuda.tiles import gemm_floats
from zinc.backends.cuda.tiles.mma_tile import MmaTile
from zinc.backends.plans import Ref
from zinc.core.rounding import ceil_div
from zinc.gpu.addresses import Addresses, DeviceWeight
from zinc.gpu.arguments.structs import LinearTileArguments
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.lower.linear import Product
from zinc.gpu.lower.operands import split_scratch
from zinc.gpu.lower.weights import format_defines
from zinc.gpu.packing import FLOATS
from zinc.gpu.tiles import MAX_BATCH


def takes(at: Addresses, bucket: Bucket, x: Ref, weights: Sequence[DeviceWeight]) -> bool:
    """Return whether `dispatches` can multiply the rows `x` with all `weights`."""
    if bucket.rows(x.dim) <= MAX_BATCH or at.features.batch_invariant:
        return False
    return all(
        w.type in FLOATS and dict(format_defines(at, w, x, w.cols))["VECTORS"] for w in weights
    )


def dispatches(
    products: Sequence[Product], at: Addresses, bucket: Bucket, in_order: bool = False
) -> list[Dispatch]:
    """Return the dispatches of products of the same rows.

    in_order: each waits for the one before it.
    """
    return [_dispatch(p, at, bucket, in_order and i > 0) for i, p in enumerate(products)]


def _dispatch(product: Product, at: Addresses, bucket: Bucket, waits: bool) -> Dispatch:
    key = product.key("gemm_floats", bucket)
    tile = gemm_floats.choose_tile(at.features, key)
    groups = (ceil_div(key.rows, tile.rows), ceil_div(key.n_x, tile.batch), tile.splits)
    n_tiles = groups[0] * groups[1]
    n_sums = n_tiles * tile.rows * tile.batch
    arguments = LinearTileArguments(
        product=product.arguments(at, bucket, *split_scratch(at, tile.splits, n_sums, n_tiles)),
        x=0,
        inverses=0,
        x_rows=0,
    )
    defines = (*product.defines(at), *_defines(tile))
    kernel = KernelVariant("gemm_floats", defines, gemm_floats.shared_bytes(tile, product.w.type))
    return Dispatch(kernel, arguments, groups, waits)


def _defines(tile: MmaTile) -> list[tuple[str, int]]:
    return [x for x in tile.defines if x[0] not in ("DEEP", "GROUPS", "KSPLIT", "PASSES")]
