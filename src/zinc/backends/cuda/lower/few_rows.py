"""Lowerings of linear and linear_glu for 3 to 16 rows of x on tensor cores (kernels/gemm_few.cu).

The matrices of a linear that have one format share a dispatch. Those of several formats run side by
side, so their blocks divide the compute units.

With a norm between two products, the first one stores rows for the second
(kernels/unscaled_rows.cuh).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from zinc.backends.cuda.lower import gemv
from zinc.backends.cuda.lower.parts import (
    Norm,
    Output,
    Part,
    arguments_of,
    by_format,
    defines_of,
    gated_part,
    key_of,
    parts_of,
)
from zinc.backends.cuda.lower.registry import fuses, lowers
from zinc.backends.cuda.tiles import gemm_few
from zinc.backends.cuda.tiles.common import FEW_TILE_ROWS
from zinc.backends.plans import Launch, Ref
from zinc.core.dataclass import dataclass
from zinc.core.rounding import ceil_div
from zinc.gpu.addresses import Addresses
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.lower.linear_norm import weights_of_gate, weights_of_parts
from zinc.gpu.lower.operands import ref_or_null, rows, vector_or_null
from zinc.gpu.lower.weights import format_defines, same_layout, weight_of
from zinc.gpu.packing import FLOATS
from zinc.gpu.rows import BLOCK, unscaled_row_bytes
from zinc.ops.node import Node
from zinc.ops.step import StepCondition
from zinc.ops.values import RowFormat, Weight

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
    n_tiles = sum(ceil_div(part.rows, FEW_TILE_ROWS) for part in parts)
    return [_dispatch(at, bucket, x, group, n_tiles, Output()) for group in by_format(parts)]


def linear_glu(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    part = gated_part(launch, at)
    n_tiles = ceil_div(part.rows, FEW_TILE_ROWS)
    return [_dispatch(at, bucket, rows(launch, "x"), (part,), n_tiles, Output.of_gated(launch))]


@dataclass(frozen=True, slots=True)
class Unscaled:
    """The input rows of a norm as 8-bit blocks, before its scale is applied, and that norm."""

    address: int
    stride: int
    norm: Norm


@lowers("linear_norm_linear")
def linear_norm_linear(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    first, unscaled = _with_norm(launch, at, bucket)
    made, *outputs = launch.outputs
    parts = parts_of(replace(launch, outputs=tuple(outputs)), at)
    n_tiles = sum(ceil_div(part.rows, FEW_TILE_ROWS) for part in parts)
    second = [
        _dispatch(at, bucket, made, group, n_tiles, Output(), reads=unscaled, waits=i == 0)
        for i, group in enumerate(by_format(parts))
    ]
    return [first, *second]


@lowers("linear_norm_linear_glu")
def linear_norm_linear_glu(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    first, unscaled = _with_norm(launch, at, bucket)
    made, *outputs = launch.outputs
    gated = replace(launch, outputs=tuple(outputs))
    part, output = gated_part(gated, at), Output.of_gated(gated)
    n_tiles = ceil_div(part.rows, FEW_TILE_ROWS)
    second = _dispatch(at, bucket, made, (part,), n_tiles, output, reads=unscaled, waits=True)
    return [first, second]


@fuses("linear_norm_linear")
def linear_norm_linear_steps(node: Node) -> StepCondition | None:
    """Return the steps of few tokens, if the rows and weights of `node` suit the kernel."""
    return _steps(node, weights_of_parts(node))


@fuses("linear_norm_linear_glu")
def linear_norm_linear_glu_steps(node: Node) -> StepCondition | None:
    """Return the steps of few tokens, if the rows and weights of `node` suit the kernel."""
    return _steps(node, weights_of_gate(node))


def _steps(node: Node, weights: Sequence[Weight]) -> StepCondition | None:
    first = node.weight("first")
    is_quantised = not any(weight.type in FLOATS for weight in (first, *weights))
    if not weights or not is_quantised or node.rows("x").format is not RowFormat.Q8_32:
        return None
    return StepCondition((FEWEST_ROWS, MOST_ROWS)) if first.rows % BLOCK == 0 else None


def _with_norm(launch: Launch, at: Addresses, bucket: Bucket) -> tuple[Dispatch, Unscaled]:
    """Return the first product of a launch, and the unscaled rows that the second one reads."""
    made, weight = launch.outputs[0], weight_of(at, launch.input("first"))
    part = Part(
        weight,
        ref_or_null(at, made),
        vector_or_null(at, launch.input("first_bias")),
        residual=ref_or_null(at, launch.input("residual")),
    )
    stride = unscaled_row_bytes(made.cols)
    address = at.scratch.take(bucket.rows(made.dim) * stride)
    norm = Norm(vector_or_null(at, launch.input("norm")), float(launch.attributes["eps"]))
    unscaled = Unscaled(address, stride, norm)
    n_tiles, x = ceil_div(part.rows, FEW_TILE_ROWS), rows(launch, "x")
    return _dispatch(at, bucket, x, (part,), n_tiles, Output(), stores=unscaled), unscaled


def _dispatch(
    at: Addresses,
    bucket: Bucket,
    x: Ref,
    parts: Sequence[Part],
    n_tiles: int,
    output: Output,
    *,
    stores: Unscaled | None = None,
    reads: Unscaled | None = None,
    waits: bool = False,
) -> Dispatch:
    """Return the product of `x` with the matrices of `parts`, which have one format.

    n_tiles: tiles of all matrices that are multiplied side by side. stores: also store the output
    as unscaled rows, for a product of its norm. reads: read these unscaled rows in place of x.
    """
    key = key_of("gemm_few", parts, bucket.rows(x.dim), output)
    tile = gemm_few.choose_tile(at.features, key)
    arguments = arguments_of(at, bucket, x, parts, FEW_TILE_ROWS, output)
    formats = dict(format_defines(at, parts[0].w, x, key.cols))
    if stores is not None:
        arguments = replace(
            arguments,
            norm=stores.norm.weights,
            unscaled=stores.address,
            unscaled_stride=stores.stride,
        )
        formats["VECTORS"] = int(parts[0].y[0] % 16 == parts[0].y[1] % 16 == 0)
    if reads is not None:
        arguments = replace(arguments, x=reads.address, x_stride=reads.stride, eps=reads.norm.eps)
        formats["ROWS_Q8"] = 1
    shares = tile.shares(at.features, key, n_tiles, stores is not None)
    in_round = shares.stripe * shares.round
    defines = (
        *formats.items(),
        *defines_of(parts, FEW_TILE_ROWS, output),
        *tile.defines,
        ("NORM_X", int(reads is not None)),
        ("NORM_Y", int(stores is not None)),
        ("ROUND", in_round),
    )
    shared_bytes = in_round * tile.tile_bytes(key) + tile.group_bytes(key.type)
    kernel = KernelVariant("gemm_few", defines, shared_bytes)
    return Dispatch(kernel, arguments, (shares.blocks(arguments.tiles), 1, 1), waits)
