"""Fused ops of a mixture of experts, for decode.

`norm_route` normalises a token, multiplies it with the router, chooses its experts and sorts its
slots. `route_experts` only chooses and sorts. `linear_glu_gate` is the gated product of a shared
expert, times the sigmoid of its gate. `moe_down_linear` adds the last product of the shared expert
to that of the chosen ones. Each replaces several ops in steps of one token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import MappingProxyType

from zinc.ops.cases import Case
from zinc.ops.costs import elementwise_cost, weight_bytes
from zinc.ops.heads import gate as gate_rows
from zinc.ops.linear import GATED, PARTS, gated_product, linear, linear_glu, product_cost
from zinc.ops.moe import SOFTMAX, group_experts, moe_down, route
from zinc.ops.node import Node
from zinc.ops.norm import rms_norm
from zinc.ops.norm_linear import is_plain_norm, normalised_cost, parts_of
from zinc.ops.operands import matrix, rows, vector
from zinc.ops.registry import Alternative, Attrs, Cost, Phase, op
from zinc.ops.step import Step
from zinc.ops.values import ActivationFn, FloatArray, Value
from zinc.quant.blocks import GGMLType


def _norm_routed(norm: Node, product: Node, choice: Node, sort: Node, blocks: Node) -> Node | None:
    """Return the fused node from the norm to the sort, None if there is none.

    blocks: the quantize node that prepares the normalised rows for the experts.
    """
    parts = parts_of(product)
    if parts is None or not is_plain_norm(norm):
        return None
    inputs = (norm.input("x"), norm.input("weight"), choice.input("bias"), *parts)
    outputs = (*blocks.outputs, *product.outputs, *choice.outputs, *sort.outputs)
    attrs = {**norm.attrs, **product.attrs, **choice.attrs, **sort.attrs}
    return Node("norm_route", inputs, outputs, MappingProxyType(attrs), choice.label)


def _norm_route_cases() -> Iterator[Case]:
    for n_gates, n_experts in ((0, 12), (1, 32)):
        case = Case(("router", "gate")[n_gates], n_tokens=1)
        graph = case.graph
        x = graph.rms_norm(case.rows(512, scale=2.0), case.vector(512), eps=1e-5)
        logits = graph.linear(x, case.matrix(n_experts, 512, GGMLType.F32, 512**-0.5))
        routes = graph.route(logits, None, top_k=4, scoring=SOFTMAX, renormalise=True)
        order, starts = graph.group_experts(routes, n_experts=n_experts)
        shared = graph.linear(x, case.matrix(64, 512, GGMLType.Q4_K, 512**-0.5))
        if n_gates:
            shared = graph.gate(
                shared, graph.linear(x, case.matrix(1, 512, GGMLType.F32, 512**-0.5))
            )
        gate, up = (case.experts(n_experts, 64, 512, GGMLType.Q4_K, 512**-0.5) for _ in range(2))
        h = graph.moe_glu(x, order, starts, gate, up, activation=ActivationFn.SILU)
        down = case.experts(n_experts, 64, 64, GGMLType.Q8_0, 64**-0.5)
        yield case.returns(graph.add(graph.moe_down(h, order, starts, routes, down), shared))


@op(
    rows("x"),
    vector("norm", optional=True),
    vector("choice_bias", optional=True),
    *PARTS,
    cost=normalised_cost,
    cases=_norm_route_cases,
    phase=Phase.MOE,
    row_wise=True,
    optional=True,
    alternative=Alternative(
        ("rms_norm", "linear", "route", "group_experts"),
        _norm_routed,
        makes=frozenset({"route"}),
        beside="quantize",
    ),
)
def norm_route(
    step: Step,
    attrs: Attrs,
    x: FloatArray,
    norm: FloatArray | None,
    choice_bias: FloatArray | None,
    weight: Sequence[FloatArray],
    bias: Sequence[FloatArray | None],
) -> Sequence[FloatArray]:
    """Return rms_norm(x), its products with each weight, and route_experts of the first one."""
    (normalised,) = rms_norm(step, attrs, x, norm, None)
    products = linear(step, attrs, normalised, weight, bias, [None] * len(weight))
    chosen = route_experts(step, attrs, products[0], choice_bias)
    return [normalised, *products, *chosen]


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
    phase=Phase.MOE,
    row_wise=True,
    optional=True,
    alternative=Alternative(("route", "group_experts"), _routed, makes=frozenset({"route"})),
)
def route_experts(
    step: Step, attrs: Attrs, logits: FloatArray, bias: FloatArray | None
) -> Sequence[FloatArray]:
    """Return the routes of each token, and the order and starts of group_experts."""
    (routes,) = route(step, attrs, logits, bias)
    return [routes, *group_experts(step, attrs, routes)]


def _gated(product: Node, gate: Node) -> Node | None:
    """Return the fused node of a linear_glu and a sigmoid gate of one column, None for others."""
    if gate.rows("g").cols != 1 or "softplus" in gate.attrs:
        return None
    inputs = (gate.input("g"), *product.inputs)
    return Node("linear_glu_gate", inputs, gate.outputs, product.attrs, product.label)


def _gate_cases() -> Iterator[Case]:
    case = Case("Q4_K", n_tokens=1)
    product = gated_product(case, case.rows(256), GGMLType.Q4_K, GGMLType.Q4_K)
    yield case.returns(case.graph.gate(product, case.rows(1)))


@op(
    rows("g"),
    rows("x", weight_format=True),
    *GATED,
    cost=product_cost,
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


def _with_shared(product: Node, down: Node) -> Node | None:
    """Return the fused node of a linear and the moe_down that adds it, None if there is none."""
    if len(product.outputs) > 1 or product.input("bias") is not None:
        return None
    own = (product.input(name) for name in ("x", "weight", "residual"))
    inputs = (*down.inputs[:-1], *own)
    return Node("moe_down_linear", inputs, down.outputs, down.attrs, down.label)


def _down_cost(node: Node) -> Cost:
    order, down, shared = node.rows("order"), node.weight("down"), node.weight("weight")
    values = (*(v for v in node.inputs if isinstance(v, Value)), *node.outputs)
    return Cost(
        fixed_bytes=weight_bytes(shared),
        row_bytes=4 * sum(value.cols for value in values),
        row_flops=2 * (order.cols * down.rows * down.cols + shared.rows * shared.cols),
        expert_bytes=weight_bytes(down) // down.planes,
        experts_per_row=order.cols,
        n_experts=down.planes,
    )


def _down_cases() -> Iterator[Case]:
    for name, type, shared_cols in (
        ("wide", GGMLType.Q4_K, 512),
        ("narrow", GGMLType.Q6_K, 256),
        ("scaled", GGMLType.Q8_0, 96),
    ):
        case = Case(name, n_tokens=1)
        g, x, residual = case.graph, case.rows(256), case.rows(128, scale=2.0)
        routes = g.route(case.rows(6), None, top_k=3, scoring=SOFTMAX, renormalise=True)
        order, starts = g.group_experts(routes, n_experts=6)
        gate, up = (case.experts(6, 256, 256, type, 256**-0.5) for _ in range(2))
        h = g.moe_glu(x, order, starts, gate, up, activation=ActivationFn.SILU)
        shared = g.linear(
            g.glu(case.rows(shared_cols), None, activation=ActivationFn.SILU),
            case.matrix(128, shared_cols, type, shared_cols**-0.5),
        )
        added = g.add(shared, residual)
        given = [case.vector(n) for n in (6 * 128, 6)] if name == "scaled" else []
        y = g.moe_down(h, order, starts, routes, case.experts(6, 128, 256, type, 0.06), *given)
        yield case.returns(g.add(y, added))


@op(
    rows("h", weight_format=True),
    rows("order"),
    rows("starts"),
    rows("routes"),
    matrix("down"),
    vector("bias", optional=True),
    vector("scale", optional=True),
    rows("x", weight_format=True),
    matrix("weight"),
    rows("residual", optional=True, residual=True),
    cost=_down_cost,
    cases=_down_cases,
    phase=Phase.MOE,
    row_wise=True,
    optional=True,
    alternative=Alternative(("linear", "moe_down"), _with_shared, through="residual"),
)
def moe_down_linear(
    step: Step,
    attrs: Attrs,
    h: FloatArray,
    order: FloatArray,
    starts: FloatArray,
    routes: FloatArray,
    down: FloatArray,
    bias: FloatArray | None,
    scale: FloatArray | None,
    x: FloatArray,
    weight: FloatArray,
    residual: FloatArray | None,
) -> Sequence[FloatArray]:
    """Return moe_down of the slots h, plus x @ weight.T + residual."""
    (shared,) = linear(step, attrs, x, [weight], [None], [residual])
    return moe_down(step, attrs, h, order, starts, routes, down, bias, scale, shared)
