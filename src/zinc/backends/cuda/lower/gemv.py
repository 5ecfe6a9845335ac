"""Lowerings of linear and linear_glu for one row of x.

The matrices of a linear that have one format share a dispatch. Steps of several rows are lowered
as on other GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from zinc.backends.cuda import tiles
from zinc.backends.plans import Launch, Ref
from zinc.gpu.addresses import Addresses, DeviceWeight
from zinc.gpu.arguments.constants import ProductKind
from zinc.gpu.arguments.structs import GemvArguments, GemvPart, Matrix
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.lower import linear as several_rows
from zinc.gpu.lower.linear import NO_ACTIVATION, GatedActivation
from zinc.gpu.lower.operands import ceil_div, ref_or_null, rows, vector_or_null
from zinc.gpu.lower.weights import distance, format_defines, matrix, same_layout, unit, weight_of
from zinc.gpu.tiles import GemvTile
from zinc.ops.values import RowFormat

NO_PART = GemvPart(
    w=Matrix(q=0, h=0, s=0),
    up=0,
    y=0,
    bias=0,
    up_bias=0,
    residual=0,
    rows=0,
    first_block=0,
)


def linear(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    x = rows(launch, "x")
    if not _has_one_row(at, x, bucket):
        return several_rows.linear(launch, at, bucket)
    parts = [
        _Part(
            weight_of(at, launch.input("weight", part)),
            ref_or_null(at, out)[0],
            vector_or_null(at, launch.input("bias", part)),
            residual=ref_or_null(at, launch.input("residual", part))[0],
        )
        for part, out in enumerate(launch.outputs)
    ]
    parts.sort(key=lambda part: part.w.type)
    return [
        _dispatch(at, x, tuple(group), ProductKind.LINEAR)
        for _, group in groupby(parts, key=lambda part: part.w.type)
    ]


def linear_glu(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    x, out = rows(launch, "x"), launch.outputs[0]
    gate, up = (weight_of(at, launch.input(name)) for name in ("gate", "up"))
    if not _has_one_row(at, x, bucket) or not same_layout(gate, up):
        return several_rows.linear_glu(launch, at, bucket)
    bias, up_bias = (vector_or_null(at, launch.input(f"{name}_bias")) for name in ("gate", "up"))
    part = _Part(gate, at.ref(out), bias, up_bias, distance(gate, up))
    activation = GatedActivation.of(launch)
    return [_dispatch(at, x, (part,), ProductKind.GLU, activation, out.format)]


def _has_one_row(at: Addresses, x: Ref, bucket: Bucket) -> bool:
    """Return whether the step has one row of `x`, and need not treat it as one of several."""
    return bucket.rows(x.dim) == 1 and not at.features.batch_invariant


@dataclass(frozen=True, slots=True)
class _Part:
    """A matrix with the addresses of its output and of what is added to it (`GemvPart`)."""

    w: DeviceWeight
    y: int
    bias: int = 0
    up_bias: int = 0
    up: int = 0
    residual: int = 0

    @property
    def rows(self) -> int:
        return self.w.planes * self.w.rows

    def arguments(self, first_block: int) -> GemvPart:
        return GemvPart(
            w=matrix(self.w),
            up=self.up,
            y=self.y,
            bias=self.bias,
            up_bias=self.up_bias,
            residual=self.residual,
            rows=self.rows,
            first_block=first_block,
        )


def _dispatch(
    at: Addresses,
    x: Ref,
    parts: Sequence[_Part],
    kind: ProductKind,
    activation: GatedActivation = NO_ACTIVATION,
    y_format: RowFormat = RowFormat.F32,
) -> Dispatch:
    """Return the product of `x` with the matrices of `parts`, which have one format."""
    w, stores_blocks = parts[0].w, y_format is not RowFormat.F32
    tile = _tile(at, parts, kind, stores_blocks)
    blocks, placed = 0, []
    for part in parts:
        placed.append(part.arguments(blocks))
        blocks += ceil_div(part.rows, tile.tile)
    first, second, third, fourth = (*placed, *[NO_PART] * (4 - len(placed)))
    arguments = GemvArguments(
        step=at.step,
        x=at.ref(x),
        first=first,
        second=second,
        third=third,
        fourth=fourth,
        alpha=activation.alpha,
        limit=activation.limit,
    )
    defines = (
        *format_defines(at, w, x, w.cols),
        ("PARTS", len(parts)),
        ("PRODUCT", kind),
        ("ACTIVATION", activation.fn),
        ("OUT_Q8", int(stores_blocks)),
        ("WHOLE", int(all(part.rows % tile.tile == 0 for part in parts))),
        ("WAVES", tile.waves),
        ("KSPLIT", tile.split),
        ("ROWS", tile.rows),
        ("DEEP", tile.deep),
    )
    return Dispatch(KernelVariant("gemv", defines), arguments, (blocks, 1, 1))


def _tile(
    at: Addresses, parts: Sequence[_Part], kind: ProductKind, stores_blocks: bool
) -> GemvTile:
    n_rows, units = sum(part.rows for part in parts), ceil_div(parts[0].w.cols, unit(parts[0].w))
    weights = 2 if kind is ProductKind.GLU else 1
    return tiles.gemv(at.features, n_rows, units, weights, stores_blocks)
