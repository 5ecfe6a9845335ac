"""Matrix products with weights, alone and fused.

A `linear` has one to four parts that read the same rows (q, k and v), each with its own weight,
bias and residual. The graph builds it with one part, and a plan pass merges parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from zinc.ops.cases import WEIGHT_TYPES, Case
from zinc.ops.costs import weight_bytes
from zinc.ops.elementwise import activate
from zinc.ops.node import Node
from zinc.ops.operands import matrix, rows, vector
from zinc.ops.registry import Attrs, ColumnSum, Cost, Division, op
from zinc.ops.step import Step
from zinc.ops.values import ActivationFn, FloatArray, Value, Weight
from zinc.quant.blocks import BLOCKS, GGMLType

# Operands of a product with several matrices, and of a gated product.
PARTS = (matrix("weight", repeated=True), vector("bias", repeated=True, optional=True))
GATED = (
    matrix("gate"),
    matrix("up"),
    vector("gate_bias", optional=True),
    vector("up_bias", optional=True),
)


def product_cost(node: Node) -> Cost:
    """Return the cost of products of rows with all matrices of a node."""
    weights = [w for w in node.inputs if isinstance(w, Weight) and not w.is_vector]
    values = [v.cols for v in node.inputs if isinstance(v, Value)]
    return Cost(
        fixed_bytes=sum(weight_bytes(w) for w in weights),
        row_bytes=4 * (sum(values) + sum(v.cols for v in node.outputs)),
        row_flops=sum(2 * w.rows * w.cols for w in weights),
    )


def _cases() -> Iterator[Case]:
    for type in WEIGHT_TYPES:
        for n_rows, tokens in ((48, 1), (40, 5), (17, 33)):
            case = Case(f"{BLOCKS[type].name}-{n_rows}x512-{tokens}", n_tokens=tokens)
            weight = case.matrix(n_rows, 512, type, 512**-0.5)
            yield case.returns(case.graph.linear(case.rows(512), weight, case.vector(n_rows)))
    # Numbers so small that 127 divided by the largest of a block is infinite.
    case = Case("smallest", n_tokens=5)
    x = case.graph.glu(case.rows(512, scale=1e-19), None, activation=ActivationFn.RELU_SQUARED)
    y = case.graph.linear(x, case.matrix(48, 512, GGMLType.Q4_K, 512**-0.5))
    yield case.returns(case.graph.add(y, case.rows(48)))


def _product(x: FloatArray, weight: FloatArray, bias: FloatArray | None) -> FloatArray:
    y = x @ weight.T
    return y if bias is None else y + bias


@op(
    rows("x", weight_format=True),
    *PARTS,
    rows("residual", repeated=True, optional=True, residual=True, in_place=True),
    cost=product_cost,
    cases=_cases,
    self_test=("Q4_K-48x512-1", "Q4_K-17x512-33"),
    division=lambda node: Division(node.outputs[0].cols, whole=frozenset({"x"})),
    sums=ColumnSum("x", "weight", once=frozenset({"bias"})),
    row_wise=True,
)
def linear(
    step: Step,
    attrs: Attrs,
    x: FloatArray,
    weight: Sequence[FloatArray],
    bias: Sequence[FloatArray | None],
    residual: Sequence[FloatArray | None],
) -> Sequence[FloatArray]:
    """Return y_i = x @ weight_i.T + bias_i + residual_i for each of `n_parts` parts."""
    outputs = []
    for part_weight, part_bias, part_residual in zip(weight, bias, residual, strict=True):
        y = _product(x, part_weight, part_bias)
        outputs.append(y if part_residual is None else y + part_residual)
    return outputs


def gated_product(case: Case, x: Value, *types: GGMLType) -> Value:
    """Return a gated product of `x` with random matrices of the two types."""
    products = (case.matrix(64, x.cols, type, x.cols**-0.5) for type in types)
    gate, up = (case.graph.linear(x, weight) for weight in products)
    return case.graph.glu(gate, up, activation=ActivationFn.SILU)


def _glu_cases() -> Iterator[Case]:
    for type in WEIGHT_TYPES:
        case = Case(f"{BLOCKS[type].name}")
        yield case.returns(gated_product(case, case.rows(256), type, type))
    for tokens in (1, 21):  # files with several formats
        case = Case(f"mixed-{tokens}", n_tokens=tokens)
        yield case.returns(gated_product(case, case.rows(256), GGMLType.Q4_K, GGMLType.Q6_K))


@op(
    rows("x", weight_format=True),
    *GATED,
    cost=product_cost,
    cases=_glu_cases,
    row_wise=True,
)
def linear_glu(
    step: Step,
    attrs: Attrs,
    x: FloatArray,
    gate: FloatArray,
    up: FloatArray,
    gate_bias: FloatArray | None,
    up_bias: FloatArray | None,
) -> Sequence[FloatArray]:
    """Return activation(x @ gate.T + gate_bias) * (x @ up.T + up_bias)."""
    gated = activate(
        int(attrs["activation"]), _product(x, gate, gate_bias), _product(x, up, up_bias), attrs
    )
    return [gated.astype(np.float32)]
