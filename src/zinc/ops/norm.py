"""RMS normalisation (Zhang and Sennrich, 2019)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from zinc.ops.cases import Case
from zinc.ops.costs import elementwise_cost
from zinc.ops.operands import rows, vector
from zinc.ops.registry import Attrs, op
from zinc.ops.step import Step
from zinc.ops.values import FloatArray


def _cases() -> Iterator[Case]:
    for cols in (32, 80, 256):
        case = Case(f"row{cols}")
        yield case.returns(case.graph.rms_norm(case.rows(cols), case.vector(cols), eps=1e-5))
    case = Case("no_weight")
    yield case.returns(case.graph.rms_norm(case.rows(64), None, eps=1e-6))


def normalise(x: FloatArray, weight: FloatArray | None, group: int, eps: float) -> FloatArray:
    """Return x / sqrt(mean(x^2) + eps) * weight [group] for each run of `group` columns."""
    runs = x.reshape(-1, group)
    mean = np.mean(np.square(runs, dtype=np.float64), axis=1, keepdims=True)
    y = runs / np.sqrt(mean + eps)
    if weight is not None:
        y = y * weight
    result: FloatArray = y.reshape(x.shape).astype(np.float32)
    return result


@op(
    rows("x"),
    vector("weight", optional=True),
    rows("residual", optional=True, residual=True, in_place=True),
    cost=elementwise_cost,
    cases=_cases,
    self_test=("row256",),
    row_wise=True,
    stores_formats=True,
    prepares_heads=True,
)
def rms_norm(
    step: Step,
    attrs: Attrs,
    x: FloatArray,
    weight: FloatArray | None,
    residual: FloatArray | None,
) -> Sequence[FloatArray]:
    """Return x / sqrt(mean(x^2) + eps) * weight, by groups of columns, plus residual if any."""
    y = normalise(x, weight, int(attrs["group"]), float(attrs["eps"]))
    return [y if residual is None else y + residual]
