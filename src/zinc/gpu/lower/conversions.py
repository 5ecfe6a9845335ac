"""Lowerings of embed and quantize, which write rows in another format."""

from __future__ import annotations

from zinc.backends.plans import Launch
from zinc.core.rounding import ceil_div
from zinc.gpu.addresses import Addresses
from zinc.gpu.arguments.structs import EmbedArguments, QuantizeArguments
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.kernel_set import lowers
from zinc.gpu.lower.operands import dim_code, rows
from zinc.gpu.lower.weights import matrix, unit, weight_of
from zinc.gpu.rows import row_bytes

THREADS = 64


@lowers("embed")
def embed(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    table, out = weight_of(at, launch.input("table")), launch.outputs[0]
    arguments = EmbedArguments(
        step=at.step,
        table=matrix(table),
        y=at.ref(out),
        cols=table.cols,
        y_stride=out.stride,
        scale=float(launch.attributes["scale"]),
    )
    by_position = (("BY_POSITION", 1),) if launch.attributes.get("by_position") else ()
    kernel = KernelVariant(
        "embed", (("FORMAT", int(table.type)), ("THREADS", THREADS), *by_position)
    )
    groups = (ceil_div(table.cols, unit(table) * THREADS), bucket.rows(out.dim), 1)
    return [Dispatch(kernel, arguments, groups)]


@lowers("quantize")
def quantize(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    x, out = rows(launch, "x"), launch.outputs[0]
    run = out.cols // out.runs
    arguments = QuantizeArguments(
        step=at.step,
        x=at.ref(x),
        y=at.ref(out),
        cols=out.cols,
        run_cols=run,
        run_bytes=row_bytes(out.format, run),
        x_stride=x.stride,
        y_stride=out.stride,
        dim=dim_code(x.dim, bucket),
    )
    kernel = KernelVariant("quantize", (("THREADS", THREADS),))
    groups = (ceil_div(out.cols, 4 * THREADS), bucket.rows(x.dim), 1)
    return [Dispatch(kernel, arguments, groups)]
