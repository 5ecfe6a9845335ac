"""Lowerings of linear and linear_glu for few rows of x, and for one row with the norm before them.

The matrices of a linear that have one format share a dispatch. Float weights have this kernel for
one row only, and other products are lowered as on other GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from zinc.backends.cuda.lower.parts import (
    NO_NORM,
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
from zinc.backends.cuda.tiles import gemv
from zinc.backends.plans import Launch, Ref
from zinc.core.rounding import ceil_div
from zinc.gpu.addresses import Addresses
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.lower import linear as several_rows
from zinc.gpu.lower.operands import in_vectors, ref_or_null, rows, vector_or_null
from zinc.gpu.lower.weights import format_defines, same_layout, weight_of
from zinc.gpu.packing import FLOATS
from zinc.ops.node import Node
from zinc.ops.step import ONE_TOKEN, StepCondition
from zinc.ops.values import RowFormat, Weight

NORMALISES = True  # whether GEMVs normalise x themselves, or wait for a kernel that does
MAX_NORM_COLS = 16384  # columns of a row that fit into shared memory
MAX_ROWS = 2  # rows of x; with more, tensor cores are faster


def linear(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    x = rows(launch, "x")
    if not _has_few_rows(at, x, bucket):
        return several_rows.linear(launch, at, bucket)
    return _by_format(at, bucket, x, parts_of(launch, at))


def linear_glu(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    x = rows(launch, "x")
    gate, up = (weight_of(at, launch.input(name)) for name in ("gate", "up"))
    if not _has_few_rows(at, x, bucket) or not same_layout(gate, up):
        return several_rows.linear_glu(launch, at, bucket)
    part = gated_part(launch, at)
    return [_dispatch(at, bucket, x, (part,), Output.of_gated(launch))]


@lowers("norm_linear")
def norm_linear(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    return _by_format(at, bucket, rows(launch, "x"), parts_of(launch, at), _norm_of(launch, at))


@lowers("norm_linear_glu")
def norm_linear_glu(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    part = gated_part(launch, at)
    norm = _norm_of(launch, at)
    x = rows(launch, "x")
    return [_dispatch(at, bucket, x, (part,), Output.of_gated(launch), norm)]


@lowers("linear_glu_gate")
def linear_glu_gate(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    part = replace(gated_part(launch, at), factor=ref_or_null(at, rows(launch, "g")))
    x = rows(launch, "x")
    return [_dispatch(at, bucket, x, (part,), Output.of_gated(launch))]


@fuses("norm_linear")
def norm_linear_steps(node: Node) -> StepCondition | None:
    """Return the steps of one token, if the weights and columns of `node` suit the kernel."""
    return _steps(node, [node.weight("weight", i) for i in range(len(node.outputs))])


@fuses("norm_linear_glu")
def norm_linear_glu_steps(node: Node) -> StepCondition | None:
    """Return the steps of one token, if the weights and columns of `node` suit the kernel."""
    weights = [node.weight("gate"), node.weight("up")]
    return _steps(node, weights) if len({w.type for w in weights}) == 1 else None


def _steps(node: Node, weights: Sequence[Weight]) -> StepCondition | None:
    cols = node.rows("x").cols
    is_quantised = not any(weight.type in FLOATS for weight in weights)
    if not (NORMALISES and is_quantised and cols % 32 == 0 and cols <= MAX_NORM_COLS):
        return None
    return ONE_TOKEN


def _norm_of(launch: Launch, at: Addresses) -> Norm:
    weights = vector_or_null(at, launch.input("norm"))
    return Norm(weights, float(launch.attributes["eps"]))


def _has_few_rows(at: Addresses, x: Ref, bucket: Bucket) -> bool:
    """Return whether the kernel takes the rows `x` of a step, which need no batch invariance."""
    most = MAX_ROWS if x.format is RowFormat.Q8_32 else 1
    return bucket.rows(x.dim) <= most and not at.features.batch_invariant


def _by_format(
    at: Addresses, bucket: Bucket, x: Ref, parts: Sequence[Part], norm: Norm = NO_NORM
) -> list[Dispatch]:
    """Return a dispatch for the parts of each format."""
    return [_dispatch(at, bucket, x, group, Output(), norm) for group in by_format(parts)]


def _dispatch(
    at: Addresses,
    bucket: Bucket,
    x: Ref,
    parts: Sequence[Part],
    output: Output,
    norm: Norm = NO_NORM,
) -> Dispatch:
    """Return the product of `x` with the matrices of `parts`, which have one format.

    With `norm` x is one float32 row, and the kernel normalises and quantises it.
    """
    normalises = norm is not NO_NORM
    key = key_of("gemv", parts, bucket.rows(x.dim), output)
    key = replace(key, normalises=normalises)
    tile = gemv.choose_tile(at.features, key)
    arguments = arguments_of(at, bucket, x, parts, tile.tile, output, norm)
    formats = dict(format_defines(at, parts[0].w, x, key.cols))
    if normalises:
        formats |= {"ROWS_Q8": 1, "VECTORS": in_vectors(at, x)}
    blocks = tile.grid(at.features, arguments.tiles)
    defines = (
        *formats.items(),
        ("TILES", ceil_div(arguments.tiles, blocks)),
        ("NORM", int(normalises)),
        *defines_of(parts, tile.tile, output),
        *tile.defines,
        *([("MIN_BLOCKS", gemv.WARPS_OF_BATCH // tile.waves)] if tile.batch > 1 else []),
    )
    return Dispatch(KernelVariant("gemv", defines), arguments, (blocks, 1, 1))
