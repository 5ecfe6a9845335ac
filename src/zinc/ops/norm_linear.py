"""Products of normalised rows, for decode: rms_norm and the linear or linear_glu that reads it.

They replace the two ops in steps of one token. Each block of a kernel normalises the row itself, so
the products need not wait for a kernel that does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import MappingProxyType

from zinc.ops.cases import Case
from zinc.ops.costs import weight_bytes
from zinc.ops.graph import Node
from zinc.ops.linear import linear, linear_glu
from zinc.ops.norm import rms_norm
from zinc.ops.operands import matrix, rows, vector
from zinc.ops.registry import Alternative, Attrs, Cost, op
from zinc.ops.step import Step
from zinc.ops.values import ActivationFn, FloatArray, Value, Weight
from zinc.quant.blocks import GGMLType


def products_cost(node: Node) -> Cost:
    """Return the cost of products of rows that are normalised first."""
    weights = [w for w in node.inputs if isinstance(w, Weight) and not w.is_vector]
    values = [v.cols for v in node.inputs if isinstance(v, Value)]
    return Cost(
        fixed_bytes=sum(weight_bytes(w) for w in weights),
        row_bytes=4 * (sum(values) + sum(v.cols for v in node.outputs)),
        row_flops=sum(2 * w.rows * w.cols for w in weights) + 4 * sum(values),
    )


def is_plain_norm(norm: Node) -> bool:
    """Return whether a norm takes whole rows, and adds nothing to them."""
    return norm.input("residual") is None and int(norm.attrs["group"]) == norm.rows("x").cols


def _fused(norm: Node, product: Node) -> Node | None:
    """Return the fused node of a norm and the linear that reads it, None if there is none."""
    n_parts = len(product.outputs)
    parts = range(n_parts)
    if not is_plain_norm(norm) or any(product.input("residual", i) is not None for i in parts):
        return None
    operands = (product.input(name, i) for i in parts for name in ("weight", "bias"))
    attrs = {**norm.attrs, **product.attrs}
    inputs = (norm.input("x"), norm.input("weight"), *operands)
    return Node("norm_linear", inputs, product.outputs, MappingProxyType(attrs), product.label)


def _fused_glu(norm: Node, product: Node) -> Node | None:
    """Return the fused node of a norm and the linear_glu that reads it, None if there is none."""
    if not is_plain_norm(norm):
        return None
    inputs = (norm.input("x"), norm.input("weight"), *product.inputs[1:])
    attrs = MappingProxyType({**norm.attrs, **product.attrs})
    return Node("norm_linear_glu", inputs, product.outputs, attrs, product.label)


def _cases() -> Iterator[Case]:
    for name, types in (("Q4_K", (GGMLType.Q4_K,) * 3), ("mixed", (GGMLType.Q4_K, GGMLType.Q6_K))):
        case = Case(name, n_tokens=1)
        graph = case.graph
        x = graph.rms_norm(case.rows(512, scale=2.0), case.vector(512), eps=1e-5)
        first, *others = (
            graph.linear(x, case.matrix(64, 512, type, 512**-0.5), None) for type in types
        )
        for other in others:
            first = graph.gate(first, other)  # an add would become a residual
        yield case.returns(first)


@op(
    rows("x"),
    vector("norm", optional=True),
    matrix("weight", repeated=True),
    vector("bias", repeated=True, optional=True),
    cost=products_cost,
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
    gate, up = (graph.linear(x, case.matrix(64, 256, GGMLType.Q4_K, 256**-0.5)) for _ in range(2))
    yield case.returns(graph.glu(gate, up, activation=ActivationFn.SILU))


@op(
    rows("x"),
    vector("norm", optional=True),
    matrix("gate"),
    matrix("up"),
    vector("gate_bias", optional=True),
    vector("up_bias", optional=True),
    cost=products_cost,
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
