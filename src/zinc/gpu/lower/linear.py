"""Lowerings of linear, linear_glu and head_linear.

A launch of several matrices becomes one dispatch for each, which may run side by side.
"""

from __future__ import annotations

from dataclasses import replace

from zinc.backends.plans import Launch, Ref
from zinc.core.dataclass import dataclass
from zinc.core.rounding import ceil_div
from zinc.gpu import tiles
from zinc.gpu.addresses import Addresses, DeviceWeight
from zinc.gpu.arguments.constants import ProductKind
from zinc.gpu.arguments.structs import LinearArguments
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.fragment_tiles import fragment_tile, takes_fragments
from zinc.gpu.kernel_set import fuses, lowers
from zinc.gpu.lower.operands import dim_code, ref_or_null, rows, split_scratch, vector_or_null
from zinc.gpu.lower.weights import (
    distance,
    format_defines,
    matrix,
    same_layout,
    takes_half,
    weight_of,
)
from zinc.gpu.tuned import TileKey
from zinc.ops.node import Node
from zinc.ops.step import ONE_TOKEN, StepCondition
from zinc.ops.values import RowFormat


@dataclass(frozen=True, slots=True)
class GatedActivation:
    """Activation function of a gated product, and its parameters."""

    fn: int = 0
    alpha: float = 0.0
    limit: float = 0.0

    @classmethod
    def of(cls, launch: Launch) -> GatedActivation:
        attrs = launch.attributes
        return cls(
            int(attrs["activation"]), float(attrs.get("alpha", 0)), float(attrs.get("limit", 0))
        )


NO_ACTIVATION = GatedActivation()


@dataclass(frozen=True, slots=True)
class Product:
    """A product of rows `x` with a weight, whose rows belong to `planes` heads.

    y, residual: (address, stride). kind: LINEAR, GLU or GATED; it decides what `up` and `residual`
    are (`LinearArguments`). rows_beside: weight rows of other products that run at the same time.
    x_at: address of the rows of x, if they are not in the arena. is_unscaled: they are unscaled
    rows (kernels/unscaled_rows.slang). gates: y is multiplied by the sigmoid of `residual`, which
    has one column.
    """

    x: Ref
    w: DeviceWeight
    y: tuple[int, int]  # address, stride
    bias: int = 0
    residual: tuple[int, int] = (0, 0)
    kind: ProductKind = ProductKind.LINEAR
    up: int = 0
    up_bias: int = 0
    activation: GatedActivation = NO_ACTIVATION
    planes: int = 1
    y_format: RowFormat = RowFormat.F32
    rows_beside: int = 0
    x_at: int = 0
    is_unscaled: bool = False
    gates: bool = False

    @property
    def n_rows(self) -> int:
        """Weight rows of a plane."""
        return self.w.planes * self.w.rows // self.planes

    def arguments(
        self, at: Addresses, bucket: Bucket, partial: int = 0, arrived: int = 0
    ) -> LinearArguments:
        """Return the arguments of a kernel.

        partial, arrived: addresses of sums and counters, if workgroups split the columns.
        """
        w, x = self.w, self.x
        return LinearArguments(
            step=at.step,
            w=matrix(w),
            up=self.up,
            x=self.x_at or at.ref(x),
            y=self.y[0],
            bias=self.bias,
            up_bias=self.up_bias,
            residual=self.residual[0],
            partial=partial,
            arrived=arrived,
            rows=self.n_rows,
            cols=w.cols,
            x_stride=x.stride,
            y_stride=self.y[1],
            residual_stride=self.residual[1],
            dim=dim_code(x.dim, bucket),
            activation=self.activation.fn,
            alpha=self.activation.alpha,
            limit=self.activation.limit,
        )

    def defines(self, at: Addresses) -> tuple[tuple[str, int], ...]:
        """Return the macros that every kernel for the product has."""
        out_q8 = int(self.y_format is RowFormat.Q8_32)
        formats = dict(format_defines(at, self.w, self.x, self.w.cols))
        if self.is_unscaled:
            formats["NORM_X"] = 1
        if self.gates:
            formats["GATES"] = 1
        return (*formats.items(), ("PRODUCT", self.kind), ("OUT_Q8", out_q8))

    def key(self, kernel: str, bucket: Bucket) -> TileKey:
        """Return the key of the tile of `kernel`."""
        return TileKey(
            kernel,
            self.w.type,
            self.n_rows * self.planes,
            self.w.cols,
            bucket.rows(self.x.dim),
            weights=2 if self.kind is ProductKind.GLU else 1,
            stores_blocks=self.y_format is not RowFormat.F32,
            heads=self.planes,
        )

    def dispatch(self, at: Addresses, bucket: Bucket, waits: bool = False) -> Dispatch:
        w, x, n_rows, n_x = self.w, self.x, self.n_rows, bucket.rows(self.x.dim)
        if takes_fragments(at.features, w.type, x.format, n_x):
            return self._gemm_few(at, bucket, waits)
        if not tiles.uses_gemv(at.features, takes_half(w, x), n_x):
            return self._gemm(at, bucket, waits)
        tile = tiles.gemv(at.features, self.key("matvec", bucket))
        tile = tiles.within_grid(at.features, tile, n_rows)
        groups = (ceil_div(n_rows, tile.tile), ceil_div(n_x, tile.batch), self.planes)
        defines = (*self.defines(at), *tile.defines)
        return Dispatch(KernelVariant("matvec", defines), self.arguments(at, bucket), groups, waits)

    def _gemm_few(self, at: Addresses, bucket: Bucket, waits: bool) -> Dispatch:
        key = self.key("gemm_few", bucket)
        tile = fragment_tile(at.features, key)
        groups = tile.groups(at.features, key, self.rows_beside)
        across = ceil_div(key.n_x, tile.batch)
        n_sums = tile.n_tiles(key) * across * tile.n_sums(key)
        split = split_scratch(at, tile.splits, n_sums, groups * across)
        arguments = self.arguments(at, bucket, *split)
        kernel = KernelVariant("gemm_few", (*self.defines(at), *tile.defines))
        return Dispatch(kernel, arguments, (groups, across * tile.splits, self.planes), waits)

    def _gemm(self, at: Addresses, bucket: Bucket, waits: bool) -> Dispatch:
        key = self.key("gemm", bucket)
        tile = tiles.gemm(at.features, key, takes_half(self.w, self.x))
        down = ceil_div(self.n_rows * key.weights, tile.rows)
        across = ceil_div(key.n_x, tile.batch)
        n_tiles = down * across
        split = split_scratch(at, tile.splits, n_tiles * tile.rows * tile.batch, n_tiles)
        arguments = self.arguments(at, bucket, *split)
        kernel = KernelVariant("gemm", (*self.defines(at), *tile.defines, ("EXPERTS", 0)))
        return Dispatch(kernel, arguments, (down, across * tile.splits, self.planes), waits)


def products_of(launch: Launch, at: Addresses) -> list[Product]:
    """Return the products of a linear, which may run side by side."""
    x = rows(launch, "x")
    weights = [weight_of(at, launch.input("weight", i)) for i in range(len(launch.outputs))]
    n_rows = sum(w.planes * w.rows for w in weights)
    return [
        Product(
            x,
            w,
            ref_or_null(at, out),
            vector_or_null(at, launch.input("bias", part)),
            ref_or_null(at, launch.input("residual", part)),
            rows_beside=n_rows - w.planes * w.rows,
        )
        for part, (w, out) in enumerate(zip(weights, launch.outputs, strict=True))
    ]


def gated_products_of(launch: Launch, at: Addresses, bucket: Bucket, joins: bool) -> list[Product]:
    """Return the products of a linear_glu, each of which waits for the one before it.

    `joins`: the kernel multiplies two weights of one layout at once. Otherwise the gate is first,
    then the product that multiplies with it.
    """
    x, out, activation = rows(launch, "x"), launch.outputs[0], GatedActivation.of(launch)
    gate, up = (weight_of(at, launch.input(name)) for name in ("gate", "up"))
    bias, up_bias = (vector_or_null(at, launch.input(f"{name}_bias")) for name in ("gate", "up"))
    y = ref_or_null(at, out)
    if same_layout(gate, up) and joins:
        both = Product(
            x,
            gate,
            y,
            bias,
            kind=ProductKind.GLU,
            up=distance(gate, up),
            up_bias=up_bias,
            activation=activation,
            y_format=out.format,
        )
        return [both]
    stride = 4 * out.cols
    made = at.scratch.take(bucket.rows(x.dim) * stride)
    first = Product(x, gate, (made, stride), bias)
    second = Product(
        x,
        up,
        y,
        up_bias,
        residual=(0, stride),
        kind=ProductKind.GATED,
        up=made,
        activation=activation,
        y_format=out.format,
    )
    return [first, second]


@lowers("linear")
def linear(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    return [product.dispatch(at, bucket) for product in products_of(launch, at)]


@lowers("linear_glu")
def linear_glu(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    x, gate = rows(launch, "x"), weight_of(at, launch.input("gate"))
    half, n_x = takes_half(gate, x), bucket.rows(x.dim)
    joins = (
        takes_fragments(at.features, gate.type, x.format, n_x)
        or tiles.uses_gemv(at.features, half, n_x)
        or tiles.takes_few_rows(at.features, half, n_x)
    )
    products = gated_products_of(launch, at, bucket, joins)
    return [product.dispatch(at, bucket, waits=i > 0) for i, product in enumerate(products)]


@lowers("linear_glu_gate")
def linear_glu_gate(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    (product,) = gated_products_of(launch, at, bucket, joins=True)
    gated = replace(product, residual=ref_or_null(at, rows(launch, "g")), gates=True)
    return [gated.dispatch(at, bucket)]


@fuses("linear_glu_gate")
def linear_glu_gate_steps(node: Node) -> StepCondition | None:
    """Return the steps of one token, if both weights of `node` have one type."""
    is_same = node.weight("gate").type == node.weight("up").type
    return ONE_TOKEN if is_same else None


@lowers("head_linear")
def head_linear(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    x, w = rows(launch, "x"), weight_of(at, launch.input("weight"))
    heads = int(launch.attributes["n_heads"])
    y = ref_or_null(at, launch.outputs[0])
    return [Product(x, w, y, planes=heads).dispatch(at, bucket)]
