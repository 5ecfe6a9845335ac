"""Lowering of lora: one dispatch for each product that an adapter changes.

A workgroup multiplies one row with `a` and then with rows of `b`. Every workgroup of a row computes
the product with `a` itself: it is small, and a second dispatch would have to wait for it.
"""

from __future__ import annotations

from zinc.backends.plans import Launch, Ref
from zinc.core.rounding import ceil_div
from zinc.gpu.addresses import Addresses
from zinc.gpu.arguments.structs import LoraArguments
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.kernel_set import lowers
from zinc.gpu.lower.operands import dim_code, is_q8, rows
from zinc.gpu.lower.weights import weight_of
from zinc.ops.values import Weight
from zinc.quant.blocks import GGMLType

MAX_RANK = 2048  # numbers of a row in shared memory
# Workgroups of a step among which the outputs of few rows are divided.
_WORKGROUPS = 256


@lowers("lora")
def lora(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    return [_part(launch, at, bucket, part) for part in range(len(launch.outputs))]


def _part(launch: Launch, at: Addresses, bucket: Bucket, part: int) -> Dispatch:
    """Return the dispatch of the adapter of one product of x."""
    x, out = rows(launch, "x"), launch.outputs[part]
    y, a = launch.input("y", part), launch.input("a", part)
    b = weight_of(at, launch.input("b", part))
    assert isinstance(y, Ref)
    if b.type is not GGMLType.F16 or b.cols > MAX_RANK:
        raise NotImplementedError(f"an adapter of rank {b.cols} and type {b.type.name}")
    n_rows, threads = bucket.rows(x.dim), 256 if at.features.subgroup >= 16 else 64
    slices = min(ceil_div(b.rows, threads), max(1, _WORKGROUPS // max(1, n_rows)))
    in_place = at.ref(y) == at.ref(out) and y.stride == out.stride
    kernel = KernelVariant(
        "lora",
        (
            ("THREADS", threads),
            ("RANK", b.cols),
            ("ROWS_Q8", is_q8(x)),
            ("SHRINKS", int(a is not None)),
            ("IN_PLACE", int(in_place)),
            ("OF_OUTPUTS", int(launch.attributes["of_outputs"])),
        ),
    )
    arguments = LoraArguments(
        step=at.step,
        scales=at.adapters,
        x=at.ref(x),
        a=weight_of(at, a).address if isinstance(a, Weight) else 0,
        b=b.address,
        y=at.ref(y),
        result=at.ref(out),
        x_stride=x.stride,
        y_stride=y.stride,
        result_stride=out.stride,
        cols=x.cols,
        rows=b.rows,
        slice_rows=ceil_div(b.rows, slices),
        adapter=int(launch.attributes["adapter"]),
        dim=dim_code(x.dim, bucket),
    )
    return Dispatch(kernel, arguments, (slices, n_rows, 1))
