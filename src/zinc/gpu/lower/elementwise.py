"""Lowerings of elementwise ops, which share one kernel."""

from __future__ import annotations

from dataclasses import replace

from zinc.backends.plans import Launch, Ref
from zinc.core.rounding import ceil_div
from zinc.gpu.addresses import Addresses
from zinc.gpu.arguments.constants import ElementwiseOp
from zinc.gpu.arguments.structs import ElementwiseArguments
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.kernel_set import lowers
from zinc.gpu.lower.operands import dim_code, in_vectors, is_q8, ref_or_null, rows, rows_or_none
from zinc.gpu.rows import row_bytes
from zinc.ops.values import RowFormat

THREADS = 64


def elementwise(
    op: ElementwiseOp,
    a: Ref,
    b: Ref | None,
    y: Ref,
    at: Addresses,
    bucket: Bucket,
    *,
    a_at: int | None = None,
    activation: int = 0,
    first: float = 0.0,
    second: float = 0.0,
    run: int = 0,
    softplus: bool = False,
) -> list[Dispatch]:
    """Return one dispatch, in which each thread handles four columns.

    first, second: parameters of the op (`ElementwiseArguments`). a_at: address of `a`, by default
    its place in the arena. run: columns of a that each column of b scales, for GATE_RUNS. softplus:
    the function of a gate, in place of sigmoid.
    """
    rows_of_b = None if op in (ElementwiseOp.GATE_ROW, ElementwiseOp.GATE_RUNS) else b
    kernel = KernelVariant(
        "elementwise",
        (
            ("OP", op.value),
            ("Q8", is_q8(y)),
            *((("RUN", run),) if run else ()),
            *((("SOFTPLUS", 1),) if softplus else ()),
            ("THREADS", THREADS),
            ("VECTORS", in_vectors(at, a, rows_of_b, y)),
        ),
    )
    b_at, b_stride = ref_or_null(at, b)
    arguments = ElementwiseArguments(
        step=at.step,
        a=at.ref(a) if a_at is None else a_at,
        b=b_at,
        y=at.ref(y),
        a_stride=a.stride,
        b_stride=b_stride,
        y_stride=y.stride,
        cols=y.cols,
        dim=dim_code(y.dim, bucket),
        activation=activation,
        first=first,
        second=second,
    )
    return [Dispatch(kernel, arguments, (ceil_div(y.cols, 4 * THREADS), bucket.rows(y.dim), 1))]


@lowers("add")
def add(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    a, b = rows(launch, "a"), rows(launch, "b")
    return elementwise(ElementwiseOp.ADD, a, b, launch.outputs[0], at, bucket)


@lowers("scale")
def scale(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    x, factor = rows(launch, "x"), float(launch.attributes["factor"])
    return elementwise(ElementwiseOp.SCALE, x, None, launch.outputs[0], at, bucket, first=factor)


@lowers("softcap")
def softcap(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    x, cap = rows(launch, "x"), float(launch.attributes["cap"])
    return elementwise(ElementwiseOp.SOFTCAP, x, None, launch.outputs[0], at, bucket, first=cap)


@lowers("glu")
def glu(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    attrs, up = launch.attributes, rows_or_none(launch, "up")
    return elementwise(
        ElementwiseOp.ACTIVATE if up is None else ElementwiseOp.GLU,
        rows(launch, "gate"),
        up,
        launch.outputs[0],
        at,
        bucket,
        activation=int(attrs["activation"]),
        first=float(attrs.get("alpha", 0.0)),
        second=float(attrs.get("limit", 0.0)),
    )


@lowers("gate")
def gate(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    x, g = rows(launch, "x"), rows(launch, "g")
    run, (y,) = x.cols // g.cols, launch.outputs
    softplus = "softplus" in launch.attributes
    if g.cols in (1, x.cols):
        op = ElementwiseOp.GATE if run == 1 else ElementwiseOp.GATE_ROW
        return elementwise(op, x, g, y, at, bucket, softplus=softplus)
    return elementwise(ElementwiseOp.GATE_RUNS, x, g, y, at, bucket, run=run, softplus=softplus)


@lowers("select_rows")
def select_rows(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    """Return a dispatch that copies rows, those of 8-bit blocks as if they were float32."""
    x, (y,) = rows(launch, "x"), launch.outputs
    if is_q8(y):
        x, y = (
            replace(ref, format=RowFormat.F32, cols=row_bytes(ref.format, ref.cols) // 4)
            for ref in (x, y)
        )
    return elementwise(ElementwiseOp.SELECT, x, None, y, at, bucket)
