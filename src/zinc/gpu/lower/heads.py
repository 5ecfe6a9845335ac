"""Joining the heads of two values."""

from __future__ import annotations

import struct

from zinc.backends.api import Launch
from zinc.gpu.dispatch import Addresses, Bucket, Dispatch, Shader, lowers
from zinc.gpu.lower.operands import ceil_div, dim_code, rows

THREADS = 128


@lowers("concat_heads")
def concat_heads(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    a, b, (y,) = rows(launch, "a"), rows(launch, "b"), launch.outputs
    n_heads = int(launch.attributes["n_heads"])
    push = struct.pack(
        "<4Q7I",
        at.step,
        at.ref(a),
        at.ref(b),
        at.ref(y),
        a.stride,
        b.stride,
        y.stride,
        y.cols,
        a.cols // n_heads,
        b.cols // n_heads,
        dim_code(launch.dim, bucket),
    )
    grid = (ceil_div(y.cols, THREADS), bucket.rows(launch.dim), 1)
    return [Dispatch(Shader("concat", (("THREADS", THREADS),)), push, grid)]
