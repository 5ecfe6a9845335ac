"""Lowerings of linear and linear_glu for 17 to 64 rows of x as stream-K GEMM (gemm_stream.cu).

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
from zinc.backends.cuda.tiles import gemm_stream
from zinc.backends.cuda.tiles.common import GROUP_COLS
from zinc.backends.plans import Launch, Ref
from zinc.core.rounding import ceil_div
from zinc.gpu.addresses import Addresses
from zinc.gpu.arguments.constants import ProductKind
from zinc.gpu.arguments.structs import StreamArguments
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.lower.operands import rows
from zinc.gpu.lower.weights import format_defines, same_layout, weight_of
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
    return gemm_stream.takes_stream(at.features, n_rows, weights[0].cols, bucket.rows(x.dim))


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
    keys = [key_of("gemm_stream", group, n_x, output) for group in groups]
    found = [gemm_stream.choose_tile(at.features, key) for key in keys]
    batch = max(tile.batch for tile in found)
    conversion, half = converted(x, parts[0].w.cols, 1, batch, at, bucket)
    n_rows = sum(key.rows for key in keys)
    products = [
        _dispatch(at, bucket, x, half, group, tile, output, key.rows / n_rows, waits=i == 0)
        for i, (group, key, tile) in enumerate(zip(groups, keys, found, strict=True))
    ]
    return [conversion, *products]


def _dispatch(
    at: Addresses,
    bucket: Bucket,
    x: Ref,
    half: HalfRows,
    parts: Sequence[Part],
    tile: gemm_stream.StreamTile,
    output: Output,
    share: float,
    waits: bool,
) -> Dispatch:
    """Return the product of `half`, the rows `x` converted, with `parts`, which have one format.

    share: of the compute units. waits: for the conversion.
    """
    cols = parts[0].w.cols
    arguments = arguments_of(at, bucket, x, parts, tile.rows, output)
    groups = ceil_div(cols, GROUP_COLS)
    units = arguments.tiles * ceil_div(groups, tile.col_groups)
    each = ceil_div(units, max(1, round(share * at.features.compute_units * tile.blocks)))
    blocks = ceil_div(units, each)
    weights = 2 if output.kind is ProductKind.GLU else 1
    partial = at.scratch.take(4 * blocks * weights * tile.rows * tile.batch)
    stream = StreamArguments(
        product=arguments,
        x=half.address,
        inverses=half.inverses,
        partial=partial,
        flags=at.counters.take(blocks),
    )
    defines = (
        *format_defines(at, parts[0].w, x, cols),
        *defines_of(parts, tile.rows, output),
        *tile.defines,
    )
    kernel = KernelVariant("gemm_stream", defines, tile.shared_bytes(weights))
    return Dispatch(kernel, stream, (blocks, 1, 1), waits)
