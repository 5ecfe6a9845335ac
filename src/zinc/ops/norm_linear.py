"""Products of normalised rows, for decode: rms_norm and the linear or linear_glu that reads it.

They replace the two ops in steps of one token. Each block of the product's kernel normalises the
row itself, so the product does not wait for a separate launch of the norm.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from types import MappingProxyType

from zinc.ops.cases import Case
from zinc.ops.linear import GATED, PARTS, gated_product, linear, linear_glu, product_cost
from zinc.ops.node import Node
from zinc.ops.norm import rms_norm
from zinc.ops.operands import rows, vector
from zinc.ops.registry import Alternative, Attrs, Cost, op
from zinc.ops.step import Step
from zinc.ops.values import FloatArray, Input, Value
from zinc.quant.blocks import GGMLType


def normalised_cost(node: Node) -> Cost:
    """Return the cost of products of rows that are normalised first."""
    cost = product_cost(node)
    norm_flops = sum(4 * v.cols for v in node.inputs if isinstance(v, Value))
    return replace(cost, row_flops=cost.row_flops + norm_flops)


def is_plain_norm(norm: Node) -> bool:
    """Return whether a norm takes whole rows, and adds nothing to them."""
    return norm.input("residual") is None and int(norm.attrs["group"]) == norm.rows("x").cols


def parts_of(product: Node) -> tuple[Input, ...] | None:
    """Return the matrices and biases of a linear, None if it adds a residual."""
    parts = range(len(product.outputs))
    if any(product.input("residual", i) is not None for i in parts):
        return None
    return tuple(product.input(name, i) for i in parts for name in ("weight", "bias"))


def _fused(norm: Node, product: Node) -> Node | None:
    """Return the fused node of a norm and the linear that reads it, None if there is none."""
    parts = parts_of(product)
    if parts is None or not is_plain_norm(norm):
        return None
    inputs = (norm.input("x"), norm.input("weight"), *parts)
    attrs = MappingProxyType({**norm.attrs, **product.attrs})
    return Node("norm_linear", inputs, product.outputs, attrs, product.label)


def _fused_glu(norm: Node, product: Node) -> Node | None:
    """Return the fused node of a norm and the linear_glu that reads it, None if there is none."""
    if not is_plain_norm(norm):
        return None
    inputs = (norm.input("x"), norm.input("weight"), *product.inputs[1:])
    attrs = MappingProxyType({**norm.attrs, **product.attrs})
    return Node("norm_linear_glu", inputs, product.outputs, attrs, product.label)


def joined_products(
    case: Case, x: Value, types: Sequence[GGMLType], *, bias: bool = False
) -> Value:
    """Return products of `x` with random matrices of these types, joined into one value."""
    products = []
    for type in types:
        weight = case.matrix(64, x.cols, type, x.cols**-0.5)
        products.append(case.graph.linear(x, weight, case.vector(64) if bias else None))
    return reduce(case.graph.gate, products)  # an add would become a residual


def _cases() -> Iterator[Case]:
    for name, types in (("Q4_K", (GGMLType.Q4_K,) * 3), ("mixed", (GGMLType.Q4_K, GGMLType.Q6_K))):
        case = Case(name, n_tokens=1)
        graph = case.graph
        x = graph.rms_norm(case.rows(512, scale=2.0), case.vector(512), eps=1e-5)
        yield case.returns(joined_products(case, x, types))


@op(
    rows("x"),
    vector("norm", optional=True),
    *PARTS,
    cost=normalised_cost,
    cases=_cases,
    row_wise=True,
    optional=True,
    alternative=Alternative(("rms_norm", "linear"), _fused),
)
def norm_linear(
    step: Step,
    attrs: Attrs,
    x: FloatArray,
    norm: FloatArray | None,
    weight: Sequence[FloatArray],
    bias: Sequence[FloatArray | None],
) -> Sequence[FloatArray]:
    """Return rms_norm(x) @ weight_i.T + bias_i for each of `n_parts` parts."""
    (normalised,) = rms_norm(step, attrs, x, norm, None)
    return linear(step, attrs, normalised, weight, bias, [None] * len(weight))


def _glu_cases() -> Iterator[Case]:
    case = Case("Q4_K", n_tokens=1)
    graph = case.graph
    x = graph.rms_norm(case.rows(256, scale=2.0), case.vector(256), eps=1e-5)
    yield case.returns(gated_product(case, x, GGMLType.Q4_K, GGMLType.Q4_K))


@op(
    rows("x"),
    vector("norm", optional=True),
    *GATED,
    cost=normalised_cost,
    cases=_glu_cases,
    row_wise=True,
    optional=True,
    alternative=Alternative(("rms_norm", "linear_glu"), _fused_glu),
)
def norm_linear_glu(
    step: Step,
    attrs: Attrs,
    x: FloatArray,
    norm: FloatArray | None,
    gate: FloatArray,
    up: FloatArray,
    gate_bias: FloatArray | None,
    up_bias: FloatArray | None,
) -> Sequence[FloatArray]:
    """Return linear_glu of rms_norm(x)."""
    (normalised,) = rms_norm(step, attrs, x, norm, None)
    return linear_glu(step, attrs, normalised, gate, up, gate_bias, up_bias)
