"""RMS normalisation (Zhang and Sennrich, 2019), layer normalisation (Ba et al., 2016), and more.

`match_rms` scales a row to the RMS of another, and `statistical_top` keeps the largest elements of
a row.
"""

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


def _match_cases() -> Iterator[Case]:
    for cols, runs in ((48, 1), (256, 3), (1100, 2)):
        case = Case(f"{runs}x{cols}")
        yield case.returns(case.graph.match_rms(case.rows(runs * cols), case.rows(cols), eps=1e-5))
    case = Case("small")
    x = case.graph.scale(case.rows(64), 1e-3)
    yield case.returns(case.graph.match_rms(x, case.rows(64), eps=1e-5))


@op(
    rows("x"),
    rows("like"),
    cost=elementwise_cost,
    cases=_match_cases,
    row_wise=True,
    division=lambda node: Division(
        node.outputs[0].cols // node.rows("like").cols, whole=frozenset({"like"})
    ),
)
def match_rms(step: Step, attrs: Attrs, x: FloatArray, like: FloatArray) -> Sequence[FloatArray]:
    """Return x / sqrt(max(mean(x^2), eps)) * rms(like).

    That is for each run of columns of x, which are as wide as `like`.
    """
    runs = x.reshape(len(x), -1, like.shape[1]).astype(np.float64)
    mean = np.square(runs).mean(axis=2, keepdims=True)
    target = np.square(like, dtype=np.float64).mean(axis=1)[:, None, None]
    y = runs * np.sqrt(target / np.maximum(mean, float(attrs["eps"])))
    return [y.reshape(x.shape).astype(np.float32)]


def _top_cases() -> Iterator[Case]:
    for cols in (48, 90, 1100):
        case = Case(f"row{cols}")
        x = case.graph.add(case.rows(cols), case.graph.embed(case.given(_offsets(cols))))
        yield case.returns(case.graph.statistical_top(x, cut=0.7))


@op(rows("x"), cost=elementwise_cost, cases=_top_cases, row_wise=True)
def statistical_top(step: Step, attrs: Attrs, x: FloatArray) -> Sequence[FloatArray]:
    """Return max(0, x - mean(x) - cut * std(x)) for each row.

    It keeps the share of a row that lies beyond `cut` standard deviations, if the row is normally
    distributed (You et al. 2025, Spark Transformer, statistical top-k).
    """
    rows = x.astype(np.float64)
    limit = rows.mean(axis=1, keepdims=True) + float(attrs["cut"]) * rows.std(axis=1, keepdims=True)
    return [np.maximum(rows - limit, 0).astype(np.float32)]
