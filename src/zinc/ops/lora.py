"""Low-rank adapters (LoRA, Hu et al. 2021) of products with weights.

A node applies one adapter to one to four products of the same rows. `Step.adapters` has the scale
of each adapter for each sequence. Rows of sequences with a scale of 0 do not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from zinc.ops.cases import Case
from zinc.ops.costs import weight_bytes
from zinc.ops.node import Node
from zinc.ops.operands import matrix, rows
from zinc.ops.registry import Attrs, Cost, op
from zinc.ops.step import Step
from zinc.ops.values import FloatArray, Value, Weight
from zinc.quant.blocks import BLOCKS, GGMLType


def _cost(node: Node) -> Cost:
    weights = [w for w in node.inputs if isinstance(w, Weight)]
    values = [v.cols for v in node.inputs if isinstance(v, Value)]
    return Cost(
        fixed_bytes=sum(weight_bytes(w) for w in weights),
        row_bytes=4 * (sum(values) + sum(v.cols for v in node.outputs)),
        row_flops=sum(2 * w.rows * w.cols for w in weights),
    )


def _cases() -> Iterator[Case]:
    scales = np.array([[0, 1.5], [0.5, 0], [0, 0], [1, -2]], np.float32)
    for rank, cols, n_rows, lengths in (
        (16, 512, 96, (1, 1, 1, 1)),
        (4, 96, 40, (2, 5, 3, 7)),
        (21, 64, 17, (33, 1, 2, 30)),
        (64, 256, 130, (1, 40, 2, 3)),
    ):
        for n_parts in (1, 3):
            name = f"{rank}-{n_rows}x{cols}-{sum(lengths)}-{n_parts}"
            case = Case(name, n_tokens=sum(lengths), sequences=lengths, adapters=scales)
            x = case.rows(cols)
            parts = [
                (
                    case.graph.linear(x, case.matrix(n_rows, cols, scale=cols**-0.5)),
                    case.matrix(rank, cols, GGMLType.F16, cols**-0.5),
                    case.matrix(n_rows, rank, GGMLType.F16, rank**-0.5),
                )
                for _ in range(n_parts)
            ]
            first = case.graph.lora(x, parts, adapter=0)
            second = case.graph.lora(
                x, [(y, a, b) for y, (_, a, b) in zip(first, parts, strict=True)], adapter=1
            )
            out = second[0]
            for other in second[1:]:
                out = case.graph.add(out, other)
            yield case.returns(out)
    for type in (GGMLType.Q8_0, GGMLType.Q4_K):  # rows are stored as the product reads them
        name = f"beside-{BLOCKS[type].name}"
        case = Case(name, n_tokens=6, sequences=(1, 5), adapters=scales[:2])
        x = case.rows(512)
        y = case.graph.linear(x, case.matrix(48, 512, type, 512**-0.5))
        a, b = case.matrix(8, 512, GGMLType.F16, 512**-0.5), case.matrix(48, 8, GGMLType.F16)
        yield case.returns(case.graph.lora(x, [(y, a, b)], adapter=0)[0])
    case = Case("shrunk", n_tokens=7, sequences=(3, 4), adapters=scales[:2])
    y, b = case.rows(48), case.matrix(48, 8, GGMLType.F16)
    yield case.returns(case.graph.lora(case.rows(8), [(y, None, b)], adapter=1)[0])


@op(
    rows("x", any_format=True),
    rows("y", repeated=True, in_place=True),
    matrix("a", repeated=True, optional=True),
    matrix("b", repeated=True),
    cost=_cost,
    cases=_cases,
)
def lora(
    step: Step,
    attrs: Attrs,
    x: FloatArray,
    y: Sequence[FloatArray],
    a: Sequence[FloatArray | None],
    b: Sequence[FloatArray],
) -> Sequence[FloatArray]:
    """Return y_i + scale * (x @ a_i.T) @ b_i.T for each part.

    The scale of a row is that of its sequence for the adapter of index `adapter`. Without `a`, x
    has been multiplied with it already.
    """
    scales = step.adapter_scales(int(attrs["adapter"]), of_outputs=bool(attrs["of_outputs"]))
    used = scales != 0
    outputs = []
    for part_y, part_a, part_b in zip(y, a, b, strict=True):
        out = part_y.astype(np.float32, copy=True)
        if used.any():
            h = x[used] if part_a is None else x[used] @ part_a.T
            out[used] += (h * scales[used, None]) @ part_b.T
        outputs.append(out)
    return outputs
