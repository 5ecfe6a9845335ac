"""Element-wise ops on rows, and the ops that copy or select rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from zinc.ops.cases import WEIGHT_TYPES, Case
from zinc.ops.costs import elementwise_cost
from zinc.ops.node import Node
from zinc.ops.operands import matrix, rows
from zinc.ops.registry import Attrs, Cost, Division, op
from zinc.ops.step import Step
from zinc.ops.values import ActivationFn, FloatArray
from zinc.quant.blocks import BLOCKS, GGMLType, row_bytes

Float64Array: TypeAlias = npt.NDArray[np.float64]


def _embed_cost(node: Node) -> Cost:
    table, out = node.weight("table"), node.outputs[0]
    return Cost(row_bytes=row_bytes(table.type, table.cols) + 4 * out.cols)


def _embed_cases() -> Iterator[Case]:
    for type in WEIGHT_TYPES:
        case = Case(f"{BLOCKS[type].name}")
        table = case.matrix(37, max(64, 2 * BLOCKS[type].block_size), type)
        yield case.returns(case.graph.embed(table, scale=1.5))
    case = Case("positions", n_tokens=6, sequences=(2, 4), cached=3)
    table = case.matrix(9, 48)
    yield case.returns(case.graph.embed_positions(table))


@op(matrix("table"), cost=_embed_cost, cases=_embed_cases)
def embed(step: Step, attrs: Attrs, table: FloatArray) -> Sequence[FloatArray]:
    """Return rows of the table: x[t] = table[ids[t]] * scale.

    With `by_position` the row is that of the token's position.
    """
    rows = step.positions if attrs.get("by_position") else step.ids
    x: FloatArray = table[rows] * np.float32(attrs["scale"])
    return [x]


def activate(function: int, gate: FloatArray, up: FloatArray, attrs: Attrs) -> FloatArray:
    """Return function(gate) * up, where `function` is an ActivationFn.

    The clamped SwiGLU is g * sigmoid(alpha g) * (u + 1) with g = min(gate, limit) and
    u = clamp(up, -limit, limit). The limited SiLU is min(silu(gate), limit) * u.
    """
    g = gate.astype(np.float64)
    if function == ActivationFn.SILU:
        y = g * sigmoid(g) * up
    elif function == ActivationFn.GELU:
        y = 0.5 * g * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3))) * up
    elif function == ActivationFn.GELU_ERF:
        y = 0.5 * g * (1 + _erf(g / np.sqrt(2))) * up
    elif function == ActivationFn.IDENTITY:
        y = g * up
    elif function == ActivationFn.RELU_SQUARED:
        y = np.square(np.maximum(g, 0)) * up
    elif function == ActivationFn.CLAMPED_SWIGLU:
        limit, alpha = float(attrs["limit"]), float(attrs["alpha"])
        g = np.minimum(g, limit)
        y = g * sigmoid(alpha * g) * (np.clip(up, -limit, limit) + 1)
    elif function == ActivationFn.LIMITED_SILU:
        limit = float(attrs["limit"])
        y = np.minimum(g * sigmoid(g), limit) * np.clip(up, -limit, limit)
    elif function == ActivationFn.SIGMOID:
        y = sigmoid(g) * up
    else:
        raise ValueError(f"unknown activation function {function}")
    return y.astype(np.float32)


def _erf(x: Float64Array) -> Float64Array:
    """Return the error function of each element; numpy has none."""
    found: Float64Array = np.vectorize(math.erf, otypes=[np.float64])(x)
    return found


def sigmoid(x: Float64Array) -> Float64Array:
    """Return 1 / (1 + exp(-x)), without overflow."""
    return 0.5 * (1 + np.tanh(0.5 * x))


def _glu_cases() -> Iterator[Case]:
    for function in ActivationFn:
        case = Case(function.name.lower())
        gate, up = case.rows(96, scale=5.0), case.rows(96, scale=5.0)
        yield case.returns(case.graph.glu(gate, up, activation=function, alpha=1.702, limit=7.0))
    for function in (ActivationFn.GELU, ActivationFn.GELU_ERF, ActivationFn.RELU_SQUARED):
        case = Case(f"{function.name.lower()}-ungated")
        yield case.returns(case.graph.glu(case.rows(90, scale=5.0), None, activation=function))


@op(
    rows("gate"),
    rows("up", optional=True),
    cost=elementwise_cost,
    cases=_glu_cases,
    row_wise=True,
    elementwise=True,
    stores_formats=True,
)
def glu(step: Step, attrs: Attrs, gate: FloatArray, up: FloatArray | None) -> Sequence[FloatArray]:
    """Return activation(gate) * up (see `activate`), or activation(gate) without `up`."""
    factor = np.ones_like(gate) if up is None else up
    return [activate(int(attrs["activation"]), gate, factor, attrs)]


def _add_cases() -> Iterator[Case]:
    case = Case("add")
    yield case.returns(case.graph.add(case.rows(48), case.rows(48)))


@op(
    rows("a", in_place=True),
    rows("b"),
    cost=elementwise_cost,
    cases=_add_cases,
    row_wise=True,
    elementwise=True,
    additive=True,
)
def add(step: Step, attrs: Attrs, a: FloatArray, b: FloatArray) -> Sequence[FloatArray]:
    """Return a + b."""
    return [a + b]


def _columns_cases() -> Iterator[Case]:
    case = Case("columns")
    g, wide, gate = case.graph, case.rows(3 * 32), case.rows(32)
    h = g.glu(gate, g.columns(wide, 32, 32), activation=ActivationFn.GELU)
    yield case.returns(g.add(h, g.columns(wide, 64, 32)))


@op(rows("x"), cost=elementwise_cost, cases=_columns_cases, row_wise=True)
def columns(step: Step, attrs: Attrs, x: FloatArray) -> Sequence[FloatArray]:
    """Return x[:, first : first + width].

    It is never launched: readers of the result read x at an offset.
    """
    first = int(attrs["first"])
    return [x[:, first : first + int(attrs["width"])]]


def _scale_cases() -> Iterator[Case]:
    case = Case("scale")
    yield case.returns(case.graph.scale(case.rows(48), 0.125))


@op(
    rows("x", in_place=True),
    cost=elementwise_cost,
    cases=_scale_cases,
    row_wise=True,
    elementwise=True,
    additive=True,
)
def scale(step: Step, attrs: Attrs, x: FloatArray) -> Sequence[FloatArray]:
    """Return x * factor."""
    return [x * np.float32(attrs["factor"])]


def _softcap_cases() -> Iterator[Case]:
    case = Case("softcap")
    yield case.returns(case.graph.softcap(case.rows(48, scale=40.0), 30.0))


@op(
    rows("x", in_place=True),
    cost=elementwise_cost,
    cases=_softcap_cases,
    row_wise=True,
    elementwise=True,
)
def softcap(step: Step, attrs: Attrs, x: FloatArray) -> Sequence[FloatArray]:
    """Return cap * tanh(x / cap)."""
    cap = float(attrs["cap"])
    return [(cap * np.tanh(x.astype(np.float64) / cap)).astype(np.float32)]


def _select_cases() -> Iterator[Case]:
    case = Case("select")
    yield case.returns(case.graph.select_rows(case.rows(48)))
    # Before a product it copies rows in the format that the product reads.
    for type in (GGMLType.Q8_0, GGMLType.Q4_K):
        case = Case(f"select-{type.name.lower()}")
        x = case.graph.rms_norm(case.rows(512), None, eps=1e-6)
        x = case.graph.select_rows(x)
        yield case.returns(case.graph.linear(x, case.matrix(24, 512, type)))


@op(
    rows("x"),
    cost=elementwise_cost,
    cases=_select_cases,
    division=lambda node: Division(node.outputs[0].cols),
    additive=True,
)
def select_rows(step: Step, attrs: Attrs, x: FloatArray) -> Sequence[FloatArray]:
    """Return the rows whose logits the step wants: y[r] = x[output_rows[r]]."""
    return [x[step.output_rows]]


def _quantize_cases() -> Iterator[Case]:
    return iter(())


@op(rows("x"), cost=elementwise_cost, cases=_quantize_cases, row_wise=True)
def quantize(step: Step, attrs: Attrs, x: FloatArray) -> Sequence[FloatArray]:
    """Convert rows to the row format of the output. The reference keeps them in float32."""
    return [x]
