"""Lowerings of moe_glu and moe_down.

A slot is one of the top_k experts of one token. With few tokens each workgroup multiplies one slot;
with many it multiplies the slots of one expert, which `group_experts` has sorted.
"""

from __future__ import annotations

from dataclasses import replace

from zinc.backends.plans import Launch, Ref
from zinc.core.dataclass import dataclass
from zinc.core.rounding import ceil_div
from zinc.gpu import tiles
from zinc.gpu.addresses import Addresses, DeviceWeight
from zinc.gpu.arguments.constants import ProductKind
from zinc.gpu.arguments.structs import (
    ExpertArguments,
    MoeDownArguments,
    MoeDownLinearArguments,
    MoeSumArguments,
)
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.kernel_set import fuses, lowers
from zinc.gpu.lower.linear import NO_ACTIVATION, GatedActivation
from zinc.gpu.lower.operands import dim_code, ref_or_null, rows, vector_or_null
from zinc.gpu.lower.weights import (
    distance,
    format_defines,
    matrix,
    same_layout,
    takes_half,
    weight_of,
)
from zinc.gpu.rows import row_bytes
from zinc.gpu.tuned import TileKey
from zinc.ops.node import Node
from zinc.ops.step import ONE_TOKEN, StepCondition
from zinc.ops.values import RowFormat

SPREAD = 4  # workgroups that share the slots of an expert
MAX_TOP_K = 64  # experts of a token in moe_down.slang and moe_down.cu
THREADS = 64


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of tokens, or of slots: address, and bytes from token to token and from slot to slot.

    With `run` 0 all slots of a token share its row.
    """

    address: int
    stride: int
    run: int


@dataclass(frozen=True, slots=True)
class ExpertProduct:
    """A product of rows with the experts of their slots.

    x: the rows, which lie in the value `read`. w: weights of all experts. y: the rows written.
    kind: LINEAR, GLU, GATED or ACTIVATED; it decides what `up` is (`ExpertArguments`).
    """

    launch: Launch
    read: Ref
    x: Rows
    w: DeviceWeight
    y: Rows
    y_format: RowFormat = RowFormat.F32
    bias: int = 0
    kind: ProductKind = ProductKind.LINEAR
    up: int = 0
    up_bias: int = 0
    activation: GatedActivation = NO_ACTIVATION

    @property
    def top_k(self) -> int:
        return rows(self.launch, "order").cols

    def arguments(self, at: Addresses, bucket: Bucket) -> ExpertArguments:
        w = self.w
        order, starts = rows(self.launch, "order"), rows(self.launch, "starts")
        return ExpertArguments(
            step=at.step,
            w=matrix(w),
            up=self.up,
            x=self.x.address,
            y=self.y.address,
            order=at.ref(order),
            starts=at.ref(starts),
            bias=self.bias,
            up_bias=self.up_bias,
            rows=w.rows,
            cols=w.cols,
            x_stride=self.x.stride,
            x_run=self.x.run,
            y_stride=self.y.stride,
            y_run=self.y.run,
            n_experts=w.planes,
            top_k=self.top_k,
            dim=dim_code(self.read.dim, bucket),
            activation=self.activation.fn,
            alpha=self.activation.alpha,
            limit=self.activation.limit,
        )

    def defines(self, at: Addresses, spread: int = SPREAD) -> tuple[tuple[str, int], ...]:
        """Return the macros that every kernel for the product has.

        spread: workgroups that share the slots of an expert.
        """
        return (
            *format_defines(at, self.w, self.read, self.w.cols, self.x.run),
            ("PRODUCT", self.kind),
            ("OUT_Q8", int(self.y_format is not RowFormat.F32)),
            ("SPREAD", spread),
        )

    def dispatch(self, at: Addresses, bucket: Bucket, waits: bool = False) -> Dispatch:
        w, x, top_k, n_x = self.w, self.read, self.top_k, bucket.rows(self.read.dim)
        arguments, defines = self.arguments(at, bucket), self.defines(at)
        n_slots = ceil_div(n_x * top_k, w.planes)
        if _fills_gemm_tiles(at, bucket, self.launch, w):
            key = self.key("gemm", w.rows, n_slots, w.planes)
            block = tiles.gemm(at.features, key, takes_half(w, x))
            groups = (ceil_div(w.rows, block.rows), SPREAD, w.planes)
            defines = (*defines, *block.defines, ("EXPERTS", 1))
            return Dispatch(KernelVariant("gemm", defines), arguments, groups, waits)
        by_expert = n_x > tiles.MAX_BATCH or at.features.batch_invariant
        if by_expert:
            key = self.key("experts", w.rows * w.planes, n_slots, w.planes)
        else:
            key = self.key("experts", w.rows * n_x * top_k, 1, 0)
        tile = tiles.gemv(at.features, key)
        groups_x = ceil_div(w.rows, tile.tile)
        groups = (groups_x, w.planes, SPREAD) if by_expert else (groups_x, n_x * top_k, 1)
        defines = (*defines, *tile.defines, ("BY_EXPERT", int(by_expert)))
        return Dispatch(KernelVariant("experts", defines), arguments, groups, waits)

    def key(self, kernel: str, rows: int, n_slots: int, experts: int) -> TileKey:
        """Return the key of the tile of `kernel` for `n_slots` slots of an expert."""
        return TileKey(
            kernel,
            self.w.type,
            rows,
            self.w.cols,
            n_slots,
            weights=2 if self.kind is ProductKind.GLU else 1,
            stores_blocks=self.y_format is not RowFormat.F32,
            experts=experts,
        )


def _fills_gemm_tiles(at: Addresses, bucket: Bucket, launch: Launch, w: DeviceWeight) -> bool:
    """Return whether experts have enough slots on average to fill the tiles of a GEMM."""
    if at.features.batch_invariant:
        return False
    order = rows(launch, "order")
    return bucket.rows(order.dim) * order.cols >= tiles.FEW_SLOTS // 4 * w.planes


def _runs(at: Addresses, x: Ref, top_k: int) -> Rows:
    """Return the slots of a value whose rows have `top_k` runs of columns, one for each slot."""
    return Rows(at.ref(x), x.stride, row_bytes(x.format, x.cols // top_k))


def gated_products_of(
    launch: Launch, at: Addresses, bucket: Bucket, joins: bool
) -> list[ExpertProduct]:
    """Return the products of a moe_glu, each of which waits for the one before it.

    Without `up` there is one product.

    `joins`: the kernel multiplies two weights of one layout at once.
    """
    x, order, out = rows(launch, "x"), rows(launch, "order"), launch.outputs[0]
    gate, is_gated = weight_of(at, launch.input("gate")), launch.input("up") is not None
    up = weight_of(at, launch.input("up")) if is_gated else gate
    bias, up_bias = (vector_or_null(at, launch.input(f"{name}_bias")) for name in ("gate", "up"))
    both = ExpertProduct(
        launch,
        x,
        Rows(at.ref(x), x.stride, 0),
        gate,
        _runs(at, out, order.cols),
        out.format,
        bias,
        ProductKind.GLU if is_gated else ProductKind.ACTIVATED,
        distance(gate, up) if is_gated else 0,
        up_bias,
        GatedActivation.of(launch),
    )
    if not is_gated:
        return [both]
    if same_layout(gate, up) and joins:
        return [both]
    run = 4 * gate.rows
    made = at.scratch.take(bucket.rows(x.dim) * order.cols * run)
    slots = Rows(made, order.cols * run, run)
    first = ExpertProduct(launch, x, both.x, gate, slots, bias=bias)
    return [first, replace(both, w=up, bias=up_bias, kind=ProductKind.GATED, up=made, up_bias=0)]


@lowers("moe_glu")
def moe_glu(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    joins = not _fills_gemm_tiles(at, bucket, launch, weight_of(at, launch.input("gate")))
    products = gated_products_of(launch, at, bucket, joins)
    return [product.dispatch(at, bucket, waits=i > 0) for i, product in enumerate(products)]


@lowers("moe_down")
def moe_down(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    n_x, top_k = bucket.rows(rows(launch, "h").dim), rows(launch, "order").cols
    is_few = n_x <= tiles.MAX_BATCH and top_k <= MAX_TOP_K
    if is_few and not at.features.batch_invariant:
        return [_gemv_down(launch, at, bucket)]
    products, total = summed_products_of(launch, at, bucket)
    return [products.dispatch(at, bucket), total]


def _gemv_down(launch: Launch, at: Addresses, bucket: Bucket) -> Dispatch:
    """Return the dispatch of a moe_down for few tokens, which sums over a token's slots itself."""
    h, order, routes = (rows(launch, name) for name in ("h", "order", "routes"))
    w, out, top_k = weight_of(at, launch.input("down")), launch.outputs[0], order.cols
    residual, residual_stride = ref_or_null(at, launch.input("residual"))
    slots, n_x = _runs(at, h, top_k), bucket.rows(h.dim)
    tile = tiles.gemv(at.features, TileKey("moe_down", w.type, n_x * w.rows, top_k * w.cols))
    arguments = MoeDownArguments(
        step=at.step,
        w=matrix(w),
        h=slots.address,
        y=at.ref(out),
        routes=at.ref(routes),
        bias=vector_or_null(at, launch.input("bias")),
        scale=vector_or_null(at, launch.input("scale")),
        residual=residual,
        rows=w.rows,
        cols=w.cols,
        h_stride=slots.stride,
        h_run=slots.run,
        routes_stride=routes.stride,
        y_stride=out.stride,
        residual_stride=residual_stride,
        dim=dim_code(h.dim, bucket),
        top_k=top_k,
    )
    defines = (*format_defines(at, w, h, w.cols, slots.run), *tile.defines)
    groups = (ceil_div(w.rows, tile.tile), n_x, 1)
    return Dispatch(KernelVariant("moe_down", defines), arguments, groups)


@fuses("moe_down_linear")
def moe_down_linear_steps(node: Node) -> StepCondition | None:
    """Return the steps of one token, if both weights of `node` have one quantised type."""
    down, shared = node.weight("down"), node.weight("weight")
    suits = (
        down.type is shared.type
        and len(shared.shape) == 2
        and {node.rows("h").format, node.rows("x").format} == {RowFormat.Q8_32}
        and node.rows("order").cols <= MAX_TOP_K
    )
    return ONE_TOKEN if suits else None


@lowers("moe_down_linear")
def moe_down_linear(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    plain = _gemv_down(launch, at, bucket)
    given, x = plain.arguments, rows(launch, "x")
    assert isinstance(given, MoeDownArguments)
    shared = weight_of(at, launch.input("weight"))
    arguments = MoeDownLinearArguments(
        w=given.w,
        shared=matrix(shared),
        h=given.h,
        x=at.ref(x),
        y=given.y,
        routes=given.routes,
        bias=given.bias,
        scale=given.scale,
        residual=given.residual,
        rows=given.rows,
        cols=given.cols,
        shared_cols=shared.cols,
        h_run=given.h_run,
        top_k=given.top_k,
    )
    kernel = KernelVariant("moe_down", (*plain.kernel.defines, ("SHARED_EXPERT", 1)))
    return [Dispatch(kernel, arguments, plain.groups)]


def summed_products_of(
    launch: Launch, at: Addresses, bucket: Bucket
) -> tuple[ExpertProduct, Dispatch]:
    """Return the products of a moe_down for many tokens, and the sums over a token's slots."""
    h, order, routes = (rows(launch, name) for name in ("h", "order", "routes"))
    w, out, top_k = weight_of(at, launch.input("down")), launch.outputs[0], order.cols
    bias, scale = (vector_or_null(at, launch.input(name)) for name in ("bias", "scale"))
    residual, residual_stride = ref_or_null(at, launch.input("residual"))
    n_x, run = bucket.rows(h.dim), 4 * w.rows
    made = at.scratch.take(n_x * top_k * run)
    products = ExpertProduct(launch, h, _runs(at, h, top_k), w, Rows(made, top_k * run, run))
    sums = MoeSumArguments(
        step=at.step,
        products=made,
        y=at.ref(out),
        routes=at.ref(routes),
        bias=bias,
        scale=scale,
        residual=residual,
        rows=w.rows,
        routes_stride=routes.stride,
        y_stride=out.stride,
        residual_stride=residual_stride,
        dim=dim_code(h.dim, bucket),
        top_k=top_k,
    )
    kernel = KernelVariant("moe_sum", (("THREADS", THREADS),))
    return products, Dispatch(kernel, sums, (ceil_div(w.rows, THREADS), n_x, 1), waits=True)
