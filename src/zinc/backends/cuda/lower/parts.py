"""Matrices of a launch with their outputs, as arguments of kernels for few rows of x."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from zinc.backends.plans import Launch, Ref
from zinc.core.dataclass import dataclass
from zinc.core.rounding import ceil_div
from zinc.gpu.addresses import Addresses, DeviceWeight
from zinc.gpu.arguments.constants import ProductKind
from zinc.gpu.arguments.structs import GemvArguments, GemvPart, Matrix
from zinc.gpu.bucket import Bucket
from zinc.gpu.lower.linear import NO_ACTIVATION, GatedActivation
from zinc.gpu.lower.operands import dim_code, ref_or_null, vector_or_null
from zinc.gpu.lower.weights import distance, matrix, weight_of
from zinc.gpu.tuned import TileKey
from zinc.ops.values import RowFormat

NO_PART = GemvPart(
    w=Matrix(q=0, h=0, s=0),
    up=0,
    y=0,
    bias=0,
    up_bias=0,
    residual=0,
    factor=0,
    y_stride=0,
    residual_stride=0,
    factor_stride=0,
    rows=0,
    first_tile=0,
)


@dataclass(frozen=True, slots=True)
class Output:
    """Output of a product: its kind, the activation if it is gated, and the format of its rows."""

    kind: ProductKind = ProductKind.LINEAR
    activation: GatedActivation = NO_ACTIVATION
    format: RowFormat = RowFormat.F32

    @classmethod
    def of_gated(cls, launch: Launch) -> Output:
        """Return the output of a gated product."""
        return cls(ProductKind.GLU, GatedActivation.of(launch), launch.outputs[0].format)

    @property
    def stores_blocks(self) -> bool:
        """Whether rows are stored as 8-bit blocks."""
        return self.format is not RowFormat.F32


@dataclass(frozen=True, slots=True)
class Part:
    """A weight matrix with its output, bias and residual (`GemvPart`).

    y, residual, factor: address of rows, and bytes from row to row.
    """

    w: DeviceWeight
    y: tuple[int, int]
    bias: int = 0
    up_bias: int = 0
    up: int = 0
    residual: tuple[int, int] = (0, 0)
    factor: tuple[int, int] = (0, 0)

    @property
    def rows(self) -> int:
        return self.w.planes * self.w.rows

    def arguments(self, first_tile: int) -> GemvPart:
        return GemvPart(
            w=matrix(self.w),
            up=self.up,
            y=self.y[0],
            bias=self.bias,
            up_bias=self.up_bias,
            residual=self.residual[0],
            factor=self.factor[0],
            y_stride=self.y[1],
            residual_stride=self.residual[1],
            factor_stride=self.factor[1],
            rows=self.rows,
            first_tile=first_tile,
        )


def parts_of(launch: Launch, at: Addresses) -> list[Part]:
    """Return the matrices of a linear, or of a norm_linear, which has no residuals."""
    adds = launch.kernel == "linear"
    return [
        Part(
            weight_of(at, launch.input("weight", part)),
            ref_or_null(at, out),
            vector_or_null(at, launch.input("bias", part)),
            residual=ref_or_null(at, launch.input("residual", part) if adds else None),
        )
        for part, out in enumerate(launch.outputs)
    ]


def gated_part(launch: Launch, at: Addresses) -> Part:
    """Return the two matrices of a gated product, which have one layout."""
    gate, up = (weight_of(at, launch.input(name)) for name in ("gate", "up"))
    bias, up_bias = (vector_or_null(at, launch.input(f"{name}_bias")) for name in ("gate", "up"))
    return Part(gate, ref_or_null(at, launch.outputs[0]), bias, up_bias, distance(gate, up))


def by_format(parts: Sequence[Part]) -> list[tuple[Part, ...]]:
    """Return `parts` in groups of one format."""
    ordered = sorted(parts, key=lambda part: part.w.type)
    return [tuple(group) for _, group in groupby(ordered, key=lambda part: part.w.type)]


def key_of(kernel: str, parts: Sequence[Part], n_x: int, output: Output) -> TileKey:
    """Return the key of the tile for the product of `n_x` rows with `parts`."""
    return TileKey(
        kernel,
        parts[0].w.type,
        sum(part.rows for part in parts),
        parts[0].w.cols,
        n_x,
        weights=2 if output.kind is ProductKind.GLU else 1,
        stores_blocks=output.stores_blocks,
    )


def defines_of(
    parts: Sequence[Part], tile_rows: int, output: Output
) -> tuple[tuple[str, int], ...]:
    """Return the macros of a kernel whose tiles have `tile_rows` rows of one of `parts`."""
    return (
        ("PARTS", len(parts)),
        ("PRODUCT", output.kind),
        ("ACTIVATION", output.activation.fn),
        ("OUT_Q8", int(output.stores_blocks)),
        ("WHOLE", int(all(part.rows % tile_rows == 0 for part in parts))),
    )


@dataclass(frozen=True, slots=True)
class Norm:
    """The norm of x: address of its weights, and epsilon."""

    weights: int = 0
    eps: float = 0.0


NO_NORM = Norm()


def arguments_of(
    at: Addresses,
    bucket: Bucket,
    x: Ref,
    parts: Sequence[Part],
    tile_rows: int,
    output: Output,
    norm: Norm = NO_NORM,
) -> GemvArguments:
    """Return the arguments of a kernel whose tiles have `tile_rows` rows of one of `parts`."""
    n_tiles, placed = 0, []
    for part in parts:
        placed.append(part.arguments(n_tiles))
        n_tiles += ceil_div(part.rows, tile_rows)
    first, second, third, fourth = (*placed, *[NO_PART] * (4 - len(placed)))
    return GemvArguments(
        step=at.step,
        x=at.ref(x),
        first=first,
        second=second,
        third=third,
        fourth=fourth,
        norm=norm.weights,
        unscaled=0,
        x_stride=x.stride,
        unscaled_stride=0,
        dim=dim_code(x.dim, bucket),
        tiles=n_tiles,
        eps=norm.eps,
        alpha=output.activation.alpha,
        limit=output.activation.limit,
    )
