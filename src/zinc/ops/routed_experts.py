"""Fused ops of a mixture of experts, for decode.

`route_experts` chooses the experts of a token and sorts its slots. `linear_glu_gate` is the gated
product of a shared expert, times the sigmoid of its gate. Each replaces two ops in steps of one
token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import MappingProxyType

from zinc.ops.cases import Case
from zinc.ops.costs import elementwise_cost, weight_bytes
from zinc.ops.graph import Node
from zinc.ops.heads import gate as gate_rows
from zinc.ops.linear import linear_glu
from zinc.ops.moe import SOFTMAX, group_experts, route
from zinc.ops.operands import matrix, rows, vector
from zinc.ops.registry import Alternative, Attrs, Cost, Phase, op
from zinc.ops.step import Step
from zinc.ops.values import ActivationFn, FloatArray, Value, Weight
from zinc.quant.blocks import GGMLType


def _routed(choice: Node, sort: Node) -> Node:
    """Return the fused node of a route and the group_experts that reads it."""
    attrs = MappingProxyType({**choice.attrs, **sort.attrs})
    outputs = (*choice.outputs, *sort.outputs)
    return Node("route_experts", choice.inputs, outputs, attrs, choice.label)


def _route_cases() -> Iterator[Case]:
    case = Case("one", n_tokens=1)
    routes = case.graph.route(case.rows(64), None, top_k=8, scoring=SOFTMAX)
    order, _ = case.graph.group_experts(routes, n_experts=64)
    yield case.returns(order)


@op(
    rows("logits"),
    vector("bias", optional=True),
    cost=elementwise_cost,
    cases=_route_cases,
    tolerance=0.0,
    phase=Phase.MOE,
    row_wise=True,
    optional=True,
    alternative=Alternative(("route", "group_experts"), _routed, keeps_first=True),
)
def route_experts(
    step: Step, attrs: Attrs, logits: FloatArray, bias: FloatArray | None
) -> Sequence[FloatArray]:
    """Return the routes of each token, and the order and starts of group_experts."""
    (routes,) = route(step, attrs, logits, bias)
    return [routes, *group_experts(step, attrs, routes)]


def _gated(product: Node, gate: Node) -> Node | None:
    """Return the fused node of a linear_glu and a gate of one column, None for wider gates."""
    if gate.rows("g").cols != 1:
        return None
    inputs = (gate.input("g"), *product.inputs)
    return Node("linear_glu_gate", inputs, gate.outputs, product.attrs, product.label)


def _gate_cost(node: Node) -> Cost:
    weights = [w for w in node.inputs if isinstance(w, Weight) and not w.is_vector]
    values = [v.cols for v in node.inputs if isinstance(v, Value)]
    return Cost(
        fixed_bytes=sum(weight_bytes(w) for w in weights),
        row_bytes=4 * (sum(values) + node.outputs[0].cols),
        row_flops=sum(2 * w.rows * w.cols for w in weights),
    )


def _gate_cases() -> Iterator[Case]:
    case = Case("Q4_K", n_tokens=1)
    graph, x = case.graph, case.rows(256)
    parts = (graph.linear(x, case.matrix(64, 256, GGMLType.Q4_K, 256**-0.5)) for _ in range(2))
    product = graph.glu(*parts, activation=ActivationFn.SILU)
    yield case.returns(graph.gate(product, case.rows(1)))


@op(
    rows("g"),
    rows("x", weight_format=True),
    matrix("gate"),
    matrix("up"),
    vector("gate_bias", optional=True),
    vector("up_bias", optional=True),
    cost=_gate_cost,
    cases=_gate_cases,
    row_wise=True,
    optional=True,
    alternative=Alternative(("linear_glu", "gate"), _gated),
)
def linear_glu_gate(
    step: Step,
    attrs: Attrs,
    g: FloatArray,
    x: FloatArray,
    gate: FloatArray,
    up: FloatArray,
    gate_bias: FloatArray | None,
    up_bias: FloatArray | None,
) -> Sequence[FloatArray]:
    """Return linear_glu(x) * sigmoid(g), where g has one column."""
    (product,) = linear_glu(step, attrs, x, gate, up, gate_bias, up_bias)
    return gate_rows(step, attrs, product, g)
