"""embed and quantize: rows from one storage format to another."""

from __future__ import annotations

import struct

from zinc.backends.api import Launch
from zinc.gpu.dispatch import Addresses, Bucket, Dispatch, Shader, lowers
from zinc.gpu.lower.operands import ceil_div, dim_code, rows
from zinc.gpu.lower.weights import matrix, unit, weight_of
from zinc.gpu.packing import row_bytes

THREADS = 64


@lowers("embed")
def embed(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    table, out = weight_of(at, launch.input("table")), launch.outputs[0]
    push = struct.pack(
        "<Q24sQIIf",
        at.step,
        matrix(table),
        at.ref(out),
        table.cols,
        out.stride,
        float(launch.attributes["scale"]),
    )
    shader = Shader("embed", (("FORMAT", int(table.type)), ("THREADS", THREADS)))
    groups = (ceil_div(table.cols, unit(table) * THREADS), bucket.rows(out.dim), 1)
    return [Dispatch(shader, push, groups)]


@lowers("quantize")
def quantize(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    x, out = rows(launch, "x"), launch.outputs[0]
    run = out.cols // out.runs
    push = struct.pack(
        "<QQQIIIIII",
        at.step,
        at.ref(x),
        at.ref(out),
        out.cols,
        run,
        row_bytes(out.format, run),
        x.stride,
        out.stride,
        dim_code(x.dim, bucket),
    )
    shader = Shader("quantize", (("THREADS", THREADS),))
    groups = (ceil_div(out.cols, 4 * THREADS), bucket.rows(x.dim), 1)
    return [Dispatch(shader, push, groups)]
