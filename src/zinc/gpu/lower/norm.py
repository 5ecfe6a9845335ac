"""Lowerings of norms, in which a workgroup keeps one group of columns in registers."""

from __future__ import annotations

from zinc.backends.plans import Launch, Operand, Ref
from zinc.core.rounding import ceil_div
from zinc.gpu.addresses import Addresses
from zinc.gpu.arguments.structs import NormArguments
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.features import MAX_THREADS
from zinc.gpu.kernel_set import lowers
from zinc.gpu.lower.operands import (
    dim_code,
    in_vectors,
    is_q8,
    power_of_two,
    ref_or_null,
    rows,
    rows_or_none,
    vector_or_null,
)

NORM_FIRST, GATE_FIRST = 1, 2  # values of GATED in kernels/norm.slang


@lowers("rms_norm")
def rms_norm(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    weight, residual = launch.input("weight"), rows_or_none(launch, "residual")
    return _norm(launch, at, bucket, weight=weight, other=residual)


@lowers("gated_norm")
def gated_norm(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    gated = GATE_FIRST if launch.attributes["gate_first"] else NORM_FIRST
    weight, z = launch.input("weight"), rows(launch, "z")
    return _norm(launch, at, bucket, gated=gated, weight=weight, other=z)


@lowers("layer_norm")
def layer_norm(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    weight, bias = launch.input("weight"), vector_or_null(at, launch.input("bias"))
    return _norm(launch, at, bucket, kind="MEAN", weight=weight, bias=bias)


@lowers("match_rms")
def match_rms(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    like = rows(launch, "like")
    return _norm(launch, at, bucket, other=like, kind="LIKE", group=like.cols)


@lowers("statistical_top")
def statistical_top(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    cut, cols = float(launch.attributes["cut"]), rows(launch, "x").cols
    return _norm(launch, at, bucket, kind="CUT", group=cols, eps=cut)


def _norm(
    launch: Launch,
    at: Addresses,
    bucket: Bucket,
    *,
    gated: int = 0,
    kind: str = "",
    weight: Operand = None,
    other: Ref | None = None,
    bias: int = 0,
    group: int = 0,
    eps: float | None = None,
) -> list[Dispatch]:
    """Return the dispatch of a norm.

    gated: value of the macro GATED. kind: a macro to define as 1: MEAN, LIKE or CUT. other: second
    row operand of the kernel. bias: address of a vector that the kernel reads in place of every row
    of `other`. group, eps: by default the attributes of the op.
    """
    x, (y,) = rows(launch, "x"), launch.outputs
    group = group or int(launch.attributes["group"])
    # At least two float4s per thread: with fewer waves the barrier of the reduction is cheaper.
    threads = min(MAX_THREADS, max(32, power_of_two(ceil_div(group, 8))))
    aligned = in_vectors(at, x, y, other) and group % 4 == 0
    kernel = KernelVariant(
        "norm",
        (
            ("THREADS", threads),
            ("FOURS", ceil_div(group, 4 * threads)),
            ("GATED", gated),
            ("Q8", is_q8(y)),
            ("VECTORS", int(aligned)),
            *(((kind, 1),) if kind else ()),
        ),
    )
    other_at, other_stride = (bias, 0) if bias else ref_or_null(at, other)
    arguments = NormArguments(
        step=at.step,
        x=at.ref(x),
        weight=vector_or_null(at, weight),
        other=other_at,
        y=at.ref(y),
        x_stride=x.stride,
        other_stride=other_stride,
        y_stride=y.stride,
        cols=x.cols,
        group=group,
        dim=dim_code(launch.dim, bucket),
        eps=float(launch.attributes["eps"]) if eps is None else eps,
    )
    return [Dispatch(kernel, arguments, (x.cols // group, bucket.rows(launch.dim), 1))]
