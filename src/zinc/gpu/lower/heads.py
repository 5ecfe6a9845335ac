"""Lowering of concat_heads, which joins the heads of two values column by column."""

from __future__ import annotations

from zinc.backends.plans import Launch
from zinc.core.rounding import ceil_div
from zinc.gpu.addresses import Addresses
from zinc.gpu.arguments.structs import ConcatArguments
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.kernel_set import lowers
from zinc.gpu.lower.operands import dim_code, rows

THREADS = 128


@lowers("concat_heads")
def concat_heads(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    a, b, (y,) = rows(launch, "a"), rows(launch, "b"), launch.outputs
    n_heads = int(launch.attributes["n_heads"])
    arguments = ConcatArguments(
        step=at.step,
        a=at.ref(a),
        b=at.ref(b),
        y=at.ref(y),
        a_stride=a.stride,
        b_stride=b.stride,
        y_stride=y.stride,
        cols=y.cols,
        a_head=a.cols // n_heads,
        b_head=b.cols // n_heads,
        dim=dim_code(launch.dim, bucket),
    )
    grid = (ceil_div(y.cols, THREADS), bucket.rows(launch.dim), 1)
    return [Dispatch(KernelVariant("concat", (("THREADS", THREADS),)), arguments, grid)]
