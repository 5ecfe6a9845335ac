"""Lowerings of norms, in which a workgroup keeps one group of columns in registers."""

from __future__ import annotations

from zinc.backends.plans import Launch, Operand, Ref
from zinc.core.dataclass import dataclass
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
    power_of_two,
    ref_or_null,
    rows,
    rows_or_none,
    vector_or_null,
)
from zinc.ops.values import RowFormat

NORM_FIRST, GATE_FIRST = 1, 2  # values of GATED in kernels/norm.slang


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that a norm writes: their address, the bytes from row to row, and their format."""

    address: int
    stride: int
    format: RowFormat


@dataclass(frozen=True, slots=True)
class Norm:
    """A norm of groups of `group` columns.

    gated: value of the macro GATED. kind: a macro to define as 1: MEAN, LIKE or CUT. other: second
    row operand of the kernel. bias: address of a vector that the kernel reads in place of every row
    of `other`.
    """

    group: int
    eps: float
    weight: Operand = None
    other: Ref | None = None
    gated: int = 0
    kind: str = ""
    bias: int = 0

    def dispatch(self, x: Ref, y: Rows, at: Addresses, bucket: Bucket) -> Dispatch:
        """Return the dispatch of the norm of rows `x`, which writes `y`."""
        group = self.group
        # At least two float4s per thread: with fewer waves the barrier of the reduction is cheaper.
        threads = min(MAX_THREADS, max(32, power_of_two(ceil_div(group, 8))))
        stores_blocks = y.format is RowFormat.Q8_32
        aligned = stores_blocks or (y.address | y.stride) % 16 == 0
        kernel = KernelVariant(
            "norm",
            (
                ("THREADS", threads),
                ("FOURS", ceil_div(group, 4 * threads)),
                ("GATED", self.gated),
                ("Q8", int(stores_blocks)),
                ("VECTORS", int(aligned and in_vectors(at, x, self.other) and group % 4 == 0)),
                *(((self.kind, 1),) if self.kind else ()),
            ),
        )
        other = (self.bias, 0) if self.bias else ref_or_null(at, self.other)
        arguments = NormArguments(
            step=at.step,
            x=at.ref(x),
            weight=vector_or_null(at, self.weight),
            other=other[0],
            y=y.address,
            x_stride=x.stride,
            other_stride=other[1],
            y_stride=y.stride,
            cols=x.cols,
            group=group,
            dim=dim_code(x.dim, bucket),
            eps=self.eps,
        )
        return Dispatch(kernel, arguments, (x.cols // group, bucket.rows(x.dim), 1))


@lowers("rms_norm")
def rms_norm(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    weight, residual = launch.input("weight"), rows_or_none(launch, "residual")
    return _dispatches(launch, at, bucket, Norm(*_group_and_eps(launch), weight, residual))


@lowers("gated_norm")
def gated_norm(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    gated = GATE_FIRST if launch.attributes["gate_first"] else NORM_FIRST
    weight, z = launch.input("weight"), rows(launch, "z")
    return _dispatches(launch, at, bucket, Norm(*_group_and_eps(launch), weight, z, gated))


@lowers("layer_norm")
def layer_norm(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    weight, bias = launch.input("weight"), vector_or_null(at, launch.input("bias"))
    norm = Norm(*_group_and_eps(launch), weight, kind="MEAN", bias=bias)
    return _dispatches(launch, at, bucket, norm)


@lowers("match_rms")
def match_rms(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    like, eps = rows(launch, "like"), float(launch.attributes["eps"])
    return _dispatches(launch, at, bucket, Norm(like.cols, eps, other=like, kind="LIKE"))


@lowers("statistical_top")
def statistical_top(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    cut, cols = float(launch.attributes["cut"]), rows(launch, "x").cols
    return _dispatches(launch, at, bucket, Norm(cols, eps=cut, kind="CUT"))


def _group_and_eps(launch: Launch) -> tuple[int, float]:
    return int(launch.attributes["group"]), float(launch.attributes["eps"])


def _dispatches(launch: Launch, at: Addresses, bucket: Bucket, norm: Norm) -> list[Dispatch]:
    x, (y,) = rows(launch, "x"), launch.outputs
    return [norm.dispatch(x, Rows(at.ref(y), y.stride, y.format), at, bucket)]
