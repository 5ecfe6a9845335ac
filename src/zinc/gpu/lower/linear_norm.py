"""Lowerings of two products with a norm between them, for steps of few tokens.

On NVIDIA GPUs the first product also stores its rows as unscaled rows
(kernels/unscaled_rows.slang). The products after the norm read these and scale their results, so
the norm needs no dispatch. On other GPUs it has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from zinc.backends.plans import Launch, Ref
from zinc.core.dataclass import dataclass
from zinc.core.rounding import ceil_div
from zinc.gpu import tiles
from zinc.gpu.addresses import Addresses
from zinc.gpu.arguments.structs import UnscaledLinearArguments
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.kernel_set import fuses, lowers
from zinc.gpu.lower.linear import Product, gated_products_of
from zinc.gpu.lower.norm import Norm, Rows
from zinc.gpu.lower.operands import dim_code, ref_or_null, rows, vector_or_null
from zinc.gpu.lower.weights import matrix, weight_of
from zinc.gpu.packing import FLOATS
from zinc.gpu.rows import BLOCK, row_bytes, unscaled_row_bytes
from zinc.ops.node import Node
from zinc.ops.step import StepCondition
from zinc.ops.values import RowFormat, Weight

MOST_ROWS = 2  # rows of x; with more, the first product needs larger tiles, which cancel the gain


@fuses("linear_norm_linear")
def linear_norm_linear_steps(node: Node) -> StepCondition | None:
    """Return the steps of few tokens, if the rows and weights of `node` suit the kernel."""
    return _steps(node, weights_of_parts(node))


@fuses("linear_norm_linear_glu")
def linear_norm_linear_glu_steps(node: Node) -> StepCondition | None:
    """Return the steps of few tokens, if the rows and weights of `node` suit the kernel."""
    return _steps(node, weights_of_gate(node))


def weights_of_parts(node: Node) -> list[Weight]:
    """Return the weights of the second product of a linear_norm_linear."""
    return [node.weight("weight", i) for i in range(len(node.outputs) - 1)]


def weights_of_gate(node: Node) -> list[Weight]:
    """Return the weights of the second product of a linear_norm_linear_glu, [] if types differ."""
    weights = [node.weight("gate"), node.weight("up")]
    return weights if weights[0].type is weights[1].type else []


def _steps(node: Node, weights: Sequence[Weight]) -> StepCondition | None:
    first = node.weight("first")
    is_quantised = not any(weight.type in FLOATS for weight in weights)
    if not weights or not is_quantised or first.rows % BLOCK or len(first.shape) > 2:
        return None
    return StepCondition((1, MOST_ROWS))


@lowers("linear_norm_linear")
def linear_norm_linear(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    before, x = _normalised(launch, at, bucket)
    products = [
        Product(
            x.ref,
            weight_of(at, launch.input("weight", part)),
            ref_or_null(at, out),
            vector_or_null(at, launch.input("bias", part)),
        )
        for part, out in enumerate(launch.outputs[1:])
    ]
    return [*before, *(x.multiplied(p, at, bucket, waits=i == 0) for i, p in enumerate(products))]


@lowers("linear_norm_linear_glu")
def linear_norm_linear_glu(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    before, x = _normalised(launch, at, bucket)
    gated = replace(launch, outputs=launch.outputs[1:])
    (product,) = gated_products_of(gated, at, bucket, joins=True)
    return [*before, x.multiplied(product, at, bucket, waits=True)]


@dataclass(frozen=True, slots=True)
class _Normalised:
    """The rows of a norm in scratch memory. ref: their columns, format and stride.

    is_unscaled: the rows still have to be multiplied by the scale of the norm.
    """

    address: int
    ref: Ref
    is_unscaled: bool

    def multiplied(self, product: Product, at: Addresses, bucket: Bucket, waits: bool) -> Dispatch:
        """Return the dispatch of `product` with these rows as x."""
        product = replace(product, x=self.ref, x_at=self.address, is_unscaled=self.is_unscaled)
        return product.dispatch(at, bucket, waits)


def _normalised(
    launch: Launch, at: Addresses, bucket: Bucket
) -> tuple[list[Dispatch], _Normalised]:
    """Return the dispatches before the second product of a launch, and the rows that they store."""
    made = launch.outputs[0]
    first = Product(
        rows(launch, "x"),
        weight_of(at, launch.input("first")),
        ref_or_null(at, made),
        vector_or_null(at, launch.input("first_bias")),
        ref_or_null(at, launch.input("residual")),
    )
    unscaled = tiles.stores_unscaled(at.features)
    stride = unscaled_row_bytes(made.cols) if unscaled else row_bytes(RowFormat.Q8_32, made.cols)
    address = at.scratch.take(bucket.rows(made.dim) * stride)
    x = _Normalised(address, replace(made, format=RowFormat.Q8_32, stride=stride), unscaled)
    if unscaled:
        return [_storing_unscaled(first, x, launch, at, bucket)], x
    norm = Norm(made.cols, float(launch.attributes["eps"]), launch.input("norm"))
    stored = norm.dispatch(made, Rows(address, stride, RowFormat.Q8_32), at, bucket)
    return [first.dispatch(at, bucket), replace(stored, waits=True)], x


def _storing_unscaled(
    product: Product, unscaled: _Normalised, launch: Launch, at: Addresses, bucket: Bucket
) -> Dispatch:
    """Return the dispatch of `product`, which also stores its rows as `unscaled`."""
    key = replace(product.key("matvec", bucket), stores_blocks=True)
    tile = tiles.gemv(at.features, key)
    w, x = product.w, product.x
    arguments = UnscaledLinearArguments(
        step=at.step,
        w=matrix(w),
        x=at.ref(x),
        y=product.y[0],
        bias=product.bias,
        residual=product.residual[0],
        norm=vector_or_null(at, launch.input("norm")),
        unscaled=unscaled.address,
        rows=product.n_rows,
        cols=w.cols,
        x_stride=x.stride,
        y_stride=product.y[1],
        residual_stride=product.residual[1],
        unscaled_stride=unscaled.ref.stride,
        dim=dim_code(x.dim, bucket),
        eps=float(launch.attributes["eps"]),
    )
    kernel = KernelVariant("matvec", (*product.defines(at), ("NORM_Y", 1), *tile.defines))
    groups = (ceil_div(product.n_rows, tile.tile), ceil_div(bucket.rows(x.dim), tile.batch), 1)
    return Dispatch(kernel, arguments, groups)
