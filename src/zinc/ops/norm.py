"""RMS normalisation (Zhang and Sennrich, 2019) and layer normalisation (Ba et al., 2016)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from zinc.ops.cases import Case
from zinc.ops.costs import elementwise_cost
from zinc.ops.operands import rows, vector
from zinc.ops.registry import Attrs, Division, op
from zinc.ops.step import Step
from zinc.ops.values import FloatArray
from zinc.quant.blocks import GGMLType


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
    division=lambda node: Division(
        node.outputs[0].cols // int(node.attrs["group"]), whole=frozenset({"weight"})
    ),
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


def _layer_cases() -> Iterator[Case]:
    for cols in (32, 80, 256, 1100):
        case = Case(f"row{cols}")
        x = case.graph.add(case.rows(cols), case.graph.embed(case.given(_offsets(cols))))
        weight, bias = case.vector(cols), case.vector(cols)
        yield case.returns(case.graph.layer_norm(x, weight, bias, eps=1e-5))
    case = Case("no_bias")
    yield case.returns(case.graph.layer_norm(case.rows(64), case.vector(64), None, eps=1e-5))
    case = Case("no_weight")
    yield case.returns(case.graph.layer_norm(case.rows(64), None, None, eps=1e-6))
    # Before a product it stores rows in the format that the product reads.
    for type in (GGMLType.Q8_0, GGMLType.Q4_K):
        case = Case(f"before-{type.name.lower()}")
        x = case.graph.layer_norm(case.rows(512), case.vector(512), case.vector(512), eps=1e-5)
        yield case.returns(case.graph.linear(x, case.matrix(24, 512, type, 512**-0.5)))
    case = Case("heads")
    x, weight = case.rows(96), case.vector(96)
    yield case.returns(case.graph.layer_norm(x, weight, None, eps=1e-5, group=32))


def _offsets(cols: int) -> FloatArray:
    """Return rows of one number each, so that means differ from 0."""
    return np.repeat(np.arange(5, dtype=np.float32)[:, None] * 3, cols, axis=1)


@op(
    rows("x"),
    vector("weight", optional=True),
    vector("bias", optional=True),
    cost=elementwise_cost,
    cases=_layer_cases,
    row_wise=True,
    stores_formats=True,
    division=lambda node: Division(node.outputs[0].cols // int(node.attrs["group"])),
)
def layer_norm(
    step: Step,
    attrs: Attrs,
    x: FloatArray,
    weight: FloatArray | None,
    bias: FloatArray | None,
) -> Sequence[FloatArray]:
    """Return (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, by groups of columns.

    weight and bias have an element for each column of a row.
    """
    runs = x.reshape(-1, int(attrs["group"])).astype(np.float64)
    runs = runs - runs.mean(axis=1, keepdims=True)
    variance = np.square(runs).mean(axis=1, keepdims=True)
    y = (runs / np.sqrt(variance + float(attrs["eps"]))).reshape(x.shape)
    if weight is not None:
        y = y * weight
    if bias is not None:
        y = y + bias
    return [y.astype(np.float32)]
