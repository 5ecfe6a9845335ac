"""Lowering of mix, the sums of runs of columns."""

from __future__ import annotations

from zinc.backends.plans import Launch
from zinc.core.rounding import ceil_div
from zinc.gpu.addresses import Addresses
from zinc.gpu.arguments.structs import MixArguments
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch, KernelVariant
from zinc.gpu.kernel_set import lowers
from zinc.gpu.lower.operands import (
    dim_code,
    in_vectors,
    is_q8,
    ref_or_null,
    rows,
    rows_or_none,
    vector_or_null,
)

THREADS = 64


@lowers("mix")
def mix(launch: Launch, at: Addresses, bucket: Bucket) -> list[Dispatch]:
    """Return one dispatch, in which each thread computes four columns of y."""
    x, residual, (y,) = rows(launch, "x"), rows_or_none(launch, "residual"), launch.outputs
    width = y.cols // int(launch.attributes["n_outputs"])
    if width % 4:
        raise NotImplementedError(f"the width {width} of a run is not a multiple of 4")
    kernel = KernelVariant(
        "mix",
        (
            ("Q8", is_q8(y)),
            ("THREADS", THREADS),
            ("VECTORS", in_vectors(at, x, residual, y)),
        ),
    )
    coefficients, coefficients_stride = ref_or_null(at, launch.input("coefficients"))
    residual_at, residual_stride = ref_or_null(at, residual)
    arguments = MixArguments(
        step=at.step,
        x=at.ref(x),
        coefficients=coefficients,
        weight=vector_or_null(at, launch.input("weight")),
        residual=residual_at,
        y=at.ref(y),
        x_stride=x.stride,
        coefficients_stride=coefficients_stride,
        residual_stride=residual_stride,
        y_stride=y.stride,
        cols=y.cols,
        width=width,
        n_inputs=int(launch.attributes["n_inputs"]),
        dim=dim_code(launch.dim, bucket),
    )
    grid = (ceil_div(y.cols, 4 * THREADS), bucket.rows(launch.dim), 1)
    return [Dispatch(kernel, arguments, grid)]
