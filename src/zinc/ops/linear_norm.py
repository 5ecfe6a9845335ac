"""Fused chains for steps of few tokens: linear, rms_norm, then linear or linear_glu.

A kernel of the first product can compute the sums of squares of its output rows, so no kernel has
to read these rows between the two products.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import MappingProxyType

from zinc.ops.cases import Case
from zinc.ops.linear import GATED, PARTS, gated_product, linear
from zinc.ops.node import Node
from zinc.ops.norm_linear import (
    is_plain_norm,
    joined_products,
    norm_linear,
    norm_linear_glu,
    normalised_cost,
    parts_of,
)
from zinc.ops.operands import matrix, rows, vector
from zinc.ops.registry import Alternative, Attrs, op
from zinc.ops.step import Step
from zinc.ops.values import FloatArray, Input, Value
from zinc.quant.blocks import GGMLType


def _first_operands(first: Node, norm: Node) -> tuple[Input, ...] | None:
    """Return the operands of the fused node from `first` and `norm`, None if they do not fit."""
    if len(first.outputs) > 1 or not is_plain_norm(norm):
        return None
    own = (first.input(name) for name in ("x", "weight", "bias", "residual"))
    return (*own, norm.input("weight"))


def _fused(first: Node, norm: Node, product: Node) -> Node | None:
    """Return the fused node of a linear, a norm and a linear, None if there is none."""
    own, parts = _first_operands(first, norm), parts_of(product)
    if own is None or parts is None:
        return None
    attrs = MappingProxyType({**norm.attrs, **product.attrs})
    outputs = (*first.outputs, *product.outputs)
    return Node("linear_norm_linear", (*own, *parts), outputs, attrs, product.label)


def _fused_glu(first: Node, norm: Node, product: Node) -> Node | None:
    """Return the fused node of a linear, a norm and a linear_glu, None if there is none."""
    own = _first_operands(first, norm)
    if own is None:
        return None
    attrs = MappingProxyType({**norm.attrs, **product.attrs})
    outputs = (*first.outputs, *product.outputs)
    return Node(
        "linear_norm_linear_glu", (*own, *product.inputs[1:]), outputs, attrs, product.label
    )


def _case(name: str, tokens: int, type: GGMLType) -> tuple[Case, Value, Value]:
    """Return a case, the rows that its first product makes, and these rows after the norm."""
    case = Case(name, n_tokens=tokens)
    graph = case.graph
    residual, x = case.rows(256, scale=2.0), case.rows(512)
    made = graph.add(graph.linear(x, case.matrix(256, 512, type, 512**-0.5)), residual)
    return case, made, graph.rms_norm(made, case.vector(256), eps=1e-5)


def _cases() -> Iterator[Case]:
    for tokens, types in (
        (1, (GGMLType.Q4_K, GGMLType.Q6_K)),
        (2, (GGMLType.Q4_K, GGMLType.Q8_0)),
        (4, (GGMLType.Q6_K, GGMLType.Q4_K)),
        (5, (GGMLType.Q4_K,) * 3),
        (8, (GGMLType.Q4_K, GGMLType.Q6_K)),
        (13, (GGMLType.Q5_K,)),
        (16, (GGMLType.Q8_0,)),
    ):
        case, made, x = _case(f"{'-'.join(x.name for x in types)}-{tokens}", tokens, types[0])
        y = joined_products(case, x, types, bias=True)
        yield case.returns(case.graph.concat_heads(y, made, n_heads=1))


@op(
    rows("x"),
    matrix("first"),
    vector("first_bias", optional=True),
    rows("residual", optional=True),
    vector("norm", optional=True),
    *PARTS,
    cost=normalised_cost,
    cases=_cases,
    row_wise=True,
    optional=True,
    alternative=Alternative(("linear", "rms_norm", "linear"), _fused, makes=frozenset({"linear"})),
)
def linear_norm_linear(
    step: Step,
    attrs: Attrs,
    x: FloatArray,
    first: FloatArray,
    first_bias: FloatArray | None,
    residual: FloatArray | None,
    norm: FloatArray | None,
    weight: Sequence[FloatArray],
    bias: Sequence[FloatArray | None],
) -> Sequence[FloatArray]:
    """Return y = x @ first.T + first_bias + residual, and norm_linear of y."""
    (y,) = linear(step, attrs, x, [first], [first_bias], [residual])
    return [y, *norm_linear(step, attrs, y, norm, weight, bias)]


def _glu_cases() -> Iterator[Case]:
    for tokens, type in (
        (1, GGMLType.Q4_K),
        (2, GGMLType.Q8_0),
        (3, GGMLType.Q5_K),
        (6, GGMLType.Q4_K),
        (8, GGMLType.Q6_K),
        (15, GGMLType.Q8_0),
    ):
        case, made, x = _case(f"{type.name}-{tokens}", tokens, type)
        y = gated_product(case, x, type, type)
        yield case.returns(case.graph.concat_heads(y, made, n_heads=1))


@op(
    rows("x"),
    matrix("first"),
    vector("first_bias", optional=True),
    rows("residual", optional=True),
    vector("norm", optional=True),
    *GATED,
    cost=normalised_cost,
    cases=_glu_cases,
    row_wise=True,
    optional=True,
    alternative=Alternative(
        ("linear", "rms_norm", "linear_glu"), _fused_glu, makes=frozenset({"linear"})
    ),
)
def linear_norm_linear_glu(
    step: Step,
    attrs: Attrs,
    x: FloatArray,
    first: FloatArray,
    first_bias: FloatArray | None,
    residual: FloatArray | None,
    norm: FloatArray | None,
    gate: FloatArray,
    up: FloatArray,
    gate_bias: FloatArray | None,
    up_bias: FloatArray | None,
) -> Sequence[FloatArray]:
    """Return y = x @ first.T + first_bias + residual, and norm_linear_glu of y."""
    (y,) = linear(step, attrs, x, [first], [first_bias], [residual])
    return [y, *norm_linear_glu(step, attrs, y, norm, gate, up, gate_bias, up_bias)]
