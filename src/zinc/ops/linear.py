"""Matrix products with weights, alone and fused.

`linear` takes one to four parts that read the same rows (q, k and v), each with its own weight,
bias and residual; the graph builds it with one part and the planner merges them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from zinc.ops.cases import WEIGHT_TYPES, Case
from zinc.ops.elementwise import activate
from zinc.ops.graph import FloatArray, Node, Value, Weight
from zinc.ops.registry import Attrs, Cost, op
from zinc.ops.step import Step
from zinc.quant.blocks import BLOCKS, GGMLType, row_bytes


def weight_bytes(weight: Weight) -> int:
    """Bytes of the weight as the file stores it."""
    return weight.planes * weight.rows * row_bytes(weight.type, weight.cols)


def _cost(node: Node) -> Cost:
    weights = [w for w in node.inputs if isinstance(w, Weight) and not w.is_vector]
    values = [v.cols for v in node.inputs if isinstance(v, Value)]
    return Cost(
        fixed_bytes=sum(weight_bytes(w) for w in weights),
        row_bytes=4 * (sum(values) + sum(v.cols for v in node.outputs)),
        row_flops=sum(2 * w.rows * w.cols for w in weights),
    )


def _cases() -> Iterator[Case]:
    for type in WEIGHT_TYPES:
        for rows, tokens in ((48, 1), (40, 5), (17, 33)):
            case = Case(f"{BLOCKS[type].name}-{rows}x512-{tokens}", n_tokens=tokens)
            weight = case.matrix(rows, 512, type)
            yield case.returns(case.graph.linear(case.rows(512), weight, case.vector(rows)))


def _product(x: FloatArray, weight: FloatArray, bias: FloatArray | None) -> FloatArray:
    y = x @ weight.T
    return y if bias is None else y + bias


@op(cost=_cost, cases=_cases)
def linear(step: Step, inputs: Sequence[Any], attrs: Attrs) -> Sequence[FloatArray]:
    """y_i = x @ weight_i.T + bias_i + residual_i for each of `n_parts` parts."""
    x, parts = inputs[0], inputs[1:]
    outputs = []
    for weight, bias, residual in zip(parts[0::3], parts[1::3], parts[2::3], strict=True):
        y = _product(x, weight, bias)
        outputs.append(y if residual is None else y + residual)
    return outputs


def _glu_cases() -> Iterator[Case]:
    for type in WEIGHT_TYPES:
        case = Case(f"{BLOCKS[type].name}")
        x = case.rows(256)
        gate = case.graph.linear(x, case.matrix(64, 256, type, 256**-0.5))
        up = case.graph.linear(x, case.matrix(64, 256, type, 256**-0.5))
        yield case.returns(case.graph.glu(gate, up, act=0))
    for tokens in (1, 21):  # files mix formats
        case = Case(f"mixed-{tokens}", n_tokens=tokens)
        x = case.rows(256)
        gate = case.graph.linear(x, case.matrix(64, 256, GGMLType.Q4_K, 256**-0.5))
        up = case.graph.linear(x, case.matrix(64, 256, GGMLType.Q6_K, 256**-0.5))
        yield case.returns(case.graph.glu(gate, up, act=0))


@op(cost=_cost, cases=_glu_cases)
def linear_glu(step: Step, inputs: Sequence[Any], attrs: Attrs) -> Sequence[FloatArray]:
    """act(x @ gate.T + bias) * (x @ up.T + bias) in one pass over both weights."""
    x, w_gate, w_up, b_gate, b_up = inputs
    gate, up = _product(x, w_gate, b_gate), _product(x, w_up, b_up)
    return [activate(int(attrs["act"]), gate, up, attrs).astype(np.float32)]
