"""Lowerings of products on tensor cores: linear, linear_glu, moe_glu and moe_down of several rows.

The number of rows of x decides which kernel multiplies quantised weights:

    1 or 2     GEMV (gemv.py)
    3 to 16    GEMM whose blocks share the tiles evenly (few_rows.py)
    17 to 64   split-K GEMM, if the GPU has warp groups (split.py)
    others     GEMM on tensor cores (this module)

Kernels for up to 16 rows read 8-bit blocks. For more rows, the norm before the product or
`half_rows` converts rows to float16 (half_rows.py), once for all products of a launch. Products
with few slots of each expert (slots.py) and float weights (float_products.py) have other kernels.
Experts of float weights and batch-invariant mode keep the shared lowerings.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace

from zinc.backends.cuda.lower import few_rows, float_products, gemv, slots, split
from zinc.backends.cuda.lower.half_rows import GROUP, NO_ROWS, HalfRows, converted
from zinc.backends.cuda.lower.registry import fuses, lowers
from zinc.backends.cuda.tiles import gemm_experts, gemm_mma
from zinc.backends.cuda.tiles.experts import SlotTiles
from zinc.backends.cuda.tiles.mma_tile import MmaTile
from zinc.backends.plans import Launch, Ref
from zinc.core.rounding import ceil_div
from zinc.gpu.addresses import Addresses
from zinc.gpu.arguments.constants import ProductKind
from zinc.gpu.arguments.structs import ExpertTileArguments, LinearTileArguments, MoeSumArguments
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.kernel_set import LOWERINGS
from zinc.gpu.lower import experts, linear
from zinc.gpu.lower.experts import ExpertProduct
from zinc.gpu.lower.linear import Product
from zinc.gpu.lower.operands import rows, split_scratch
from zinc.gpu.lower.weights import weight_of
from zinc.gpu.tiles import MAX_BATCH
from zinc.ops.node import Node
from zinc.ops.step import StepCondition
from zinc.ops.values import RowFormat

SUM_THREADS = 128  # per block of moe_sum


@lowers("linear")
def linear_products(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    if few_rows.takes(launch, at, bucket):
        return few_rows.linear(launch, at, bucket)
    if split.takes(launch, at, bucket):
        return split.linear(launch, at, bucket)
    x, products = rows(launch, "x"), linear.products_of(launch, at)
    if _takes_rows(at, bucket, x, few_rows.FEWEST_ROWS):
        return _side_by_side(products, at, bucket)
    if float_products.takes(at, bucket, x, [product.w for product in products]):
        return float_products.dispatches(products, at, bucket)
    return gemv.linear(launch, at, bucket)


@lowers("linear_glu")
def gated_products(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    x = rows(launch, "x")
    weights = [weight_of(at, launch.input(name)) for name in ("gate", "up")]
    if float_products.takes(at, bucket, x, weights):
        products = linear.gated_products_of(launch, at, bucket, joins=False)
        return float_products.dispatches(products, at, bucket, in_order=True)
    if few_rows.takes(launch, at, bucket):
        return few_rows.linear_glu(launch, at, bucket)
    if split.takes(launch, at, bucket):
        return split.linear_glu(launch, at, bucket)
    if not _takes_rows(at, bucket, x, few_rows.FEWEST_ROWS):
        return gemv.linear_glu(launch, at, bucket)
    products = linear.gated_products_of(launch, at, bucket, joins=True)
    first = _side_by_side(products[:1], at, bucket)
    second = _side_by_side(products[1:], at, bucket, waits=True)
    return [*first, *second]


@lowers("moe_glu")
def gated_experts(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    if not _takes_rows(at, bucket, rows(launch, "x"), MAX_BATCH + 1):
        return LOWERINGS["moe_glu"](launch, _with_slot_tiles(at), bucket)
    products = experts.gated_products_of(launch, at, bucket, joins=True)
    return [
        dispatch
        for i, product in enumerate(products)
        for dispatch in _expert_dispatches(product, at, bucket, waits=i > 0)
    ]


@lowers("moe_down")
def summed_experts(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    if not _takes_rows(at, bucket, rows(launch, "h"), MAX_BATCH + 1):
        *products, last = LOWERINGS["moe_down"](launch, _with_slot_tiles(at), bucket)
        return [*products, _in_vectors(last)]
    product, total = experts.summed_products_of(launch, at, bucket)
    return [*_expert_dispatches(product, at, bucket), _in_vectors(total)]


@fuses("moe_down_linear")
def moe_down_linear_steps(node: Node) -> StepCondition | None:
    """Return None: in a CUDA graph the shared expert's last product runs beside moe_glu."""
    return None


def _with_slot_tiles(at: Addresses) -> Addresses:
    """Return `at` with CUDA's own tiles for the shared lowerings of experts."""
    found = copy(at)
    found.features = replace(at.features, tuned=SlotTiles(at.features.tuned))
    return found


def _in_vectors(dispatch: Dispatch) -> Dispatch:
    """Return a dispatch of moe_sum whose threads sum four columns; other dispatches unchanged."""
    x = dispatch.arguments
    if not isinstance(x, MoeSumArguments):
        return dispatch
    places = x.products | x.y | x.bias | x.residual | x.y_stride | x.residual_stride | 4 * x.rows
    defines = (("THREADS", SUM_THREADS), ("VECTORS", int(places % 16 == 0)))
    groups = (ceil_div(x.rows, 4 * SUM_THREADS), *dispatch.groups[1:])
    return replace(dispatch, kernel=KernelVariant("moe_sum", defines), groups=groups)


def _takes_rows(at: Addresses, bucket: Bucket, x: Ref, few: int) -> bool:
    """Return whether tensor cores multiply the rows `x`, of which there are at least `few`."""
    is_many = bucket.rows(x.dim) >= few and not at.features.batch_invariant
    return is_many and x.format is RowFormat.Q8_32


def _side_by_side(
    products: Sequence[Product], at: Addresses, bucket: Bucket, waits: bool = False
) -> list[Dispatch]:
    """Return the dispatches of products of the same rows."""
    chosen = [
        gemm_mma.choose_tile(at.features, product.key("gemm_mma", bucket)) for product in products
    ]
    dispatches, x = [], NO_ROWS
    if any(tile.stages for tile in chosen):
        batch = max(tile.batch for tile in chosen)
        conversion, x = converted(products[0].x, products[0].w.cols, 1, batch, at, bucket)
        dispatches.append(conversion)
    for i, (product, tile) in enumerate(zip(products, chosen, strict=True)):
        starts_late = i == 0 and (waits or x is not NO_ROWS)
        dispatches.append(_dispatch(product, tile, x, at, bucket, starts_late))
    return dispatches


def _dispatch(
    product: Product, tile: MmaTile, x: HalfRows, at: Addresses, bucket: Bucket, waits: bool
) -> Dispatch:
    weights = 2 if product.kind is ProductKind.GLU else 1
    groups = (
        ceil_div(product.n_rows, tile.rows),
        ceil_div(bucket.rows(product.x.dim), tile.batch),
        tile.splits,
    )
    n_tiles = groups[0] * groups[1]
    n_sums = n_tiles * tile.rows * tile.batch * weights
    arguments = LinearTileArguments(
        product=product.arguments(at, bucket, *split_scratch(at, tile.splits, n_sums, n_tiles)),
        x=x.address,
        inverses=x.inverses,
        x_rows=x.n_rows,
    )
    defines = (*product.defines(at), *tile.defines, ("EXPERTS", 0))
    return Dispatch(KernelVariant("gemm_mma", defines, tile.shared_bytes), arguments, groups, waits)


def _expert_dispatches(
    product: ExpertProduct, at: Addresses, bucket: Bucket, waits: bool = False
) -> list[Dispatch]:
    read, w, top_k = product.read, product.w, product.top_k
    if slots.takes(product, bucket):
        return [slots.dispatch(product, at, bucket, waits)]
    n_x = bucket.rows(read.dim) * top_k
    n_slots = ceil_div(n_x, w.planes)
    key = product.key("gemm_experts", w.rows, n_slots, w.planes)
    tile = gemm_experts.choose_tile(at.features, key)
    defines = (*product.defines(at, tile.spread), *tile.defines, ("EXPERTS", 1))
    groups_x = ceil_div(w.rows, tile.rows * tile.passes)
    if not tile.stages:
        arguments = _expert_arguments(product, NO_ROWS, at, bucket)
        groups = (groups_x, tile.spread, min(w.planes, n_x))
        return [Dispatch(KernelVariant("gemm_mma", defines), arguments, groups, waits)]
    runs = top_k if product.x.run else 1
    conversion, x = converted(read, w.cols, runs, GROUP, at, bucket, by_row=True)
    arguments = _expert_arguments(product, x, at, bucket)
    kernel = KernelVariant("gemm_experts", defines, tile.shared_bytes)
    groups = (groups_x, tile.spread, w.planes)
    return [conversion, Dispatch(kernel, arguments, groups, waits=True)]


def _expert_arguments(
    product: ExpertProduct, x: HalfRows, at: Addresses, bucket: Bucket
) -> ExpertTileArguments:
    return ExpertTileArguments(
        product=product.arguments(at, bucket), x=x.address, inverses=x.inverses, x_rows=x.n_rows
    )
