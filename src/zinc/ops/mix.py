"""Linear combinations of runs of columns, with coefficients for each row.

With one run and one coefficient, it scales each row by a number. Alternating updates
(Baykal et al. 2023, AltUp) predict and correct several hidden states of a token with such sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from zinc.ops.cases import Case
from zinc.ops.costs import elementwise_cost
from zinc.ops.node import Node
from zinc.ops.operands import rows, vector
from zinc.ops.registry import Attrs, Division, op
from zinc.ops.step import Step
from zinc.ops.values import FloatArray
from zinc.quant.blocks import GGMLType


def _cases() -> Iterator[Case]:
    for n_inputs, n_outputs in ((1, 1), (4, 4), (1, 3)):
        case = Case(f"{n_inputs}to{n_outputs}")
        g, x = case.graph, case.rows(n_inputs * 48)
        factors = case.rows(n_inputs * n_outputs)
        yield case.returns(g.mix(x, factors, n_inputs=n_inputs, n_outputs=n_outputs))
    case = Case("residual")
    g, x, wide = case.graph, case.rows(40), case.rows(160)
    yield case.returns(g.add(g.mix(x, case.rows(4), n_outputs=4), wide))
    case = Case("repeated")
    g, x, wide = case.graph, case.rows(48), case.rows(4 * 48)
    yield case.returns(g.add(g.mix(x, None, n_outputs=3), g.columns(wide, 48, 3 * 48)))
    case = Case("view")
    g, x, wide = case.graph, case.rows(48), case.rows(7)
    yield case.returns(g.mix(x, g.columns(wide, 5, 1)))
    case = Case("weight")
    g, x, wide = case.graph, case.rows(2 * 48), case.rows(3 * 48)
    y = g.mix(x, case.rows(6), n_inputs=2, n_outputs=3, weight=case.vector(48))
    yield case.returns(g.add(y, wide))
    # Before a product it stores rows in the format that the product reads.
    for type in (GGMLType.Q8_0, GGMLType.Q4_K):
        case = Case(f"before-{type.name.lower()}")
        x = case.graph.mix(case.rows(512), case.rows(1))
        yield case.returns(case.graph.linear(x, case.matrix(24, 512, type, 512**-0.5)))


def _division(node: Node) -> Division:
    """Return the division of each run of columns."""
    n_outputs = int(node.attrs["n_outputs"])
    width = node.outputs[0].cols // n_outputs
    runs = node.rows("x").cols // width
    sections = {"x": (width,) * runs, "out": (width,) * n_outputs, "weight": (width,)}
    return Division(width, frozenset({"coefficients"}), sections)


@op(
    rows("x"),
    rows("coefficients", optional=True),
    vector("weight", optional=True),
    rows("residual", optional=True, residual=True, in_place=True),
    cost=elementwise_cost,
    cases=_cases,
    row_wise=True,
    stores_formats=True,
    division=_division,
)
def mix(
    step: Step,
    attrs: Attrs,
    x: FloatArray,
    coefficients: FloatArray | None,
    weight: FloatArray | None,
    residual: FloatArray | None,
) -> Sequence[FloatArray]:
    """Return y_i = weight * sum over j of c_ij x_j for runs of columns x_j, plus residual if any.

    A row of `coefficients` is [n_outputs, n_inputs]; without them all are 1. y has `n_outputs` runs
    as wide as the `n_inputs` runs of x, and the weight has an element for each column of a run.
    """
    n_inputs, n_outputs = int(attrs["n_inputs"]), int(attrs["n_outputs"])
    runs = x.reshape(len(x), n_inputs, -1).astype(np.float64)
    if coefficients is None:
        coefficients = np.ones((len(x), n_outputs * n_inputs), np.float32)
    factors = coefficients.reshape(len(x), n_outputs, n_inputs)
    mixed = np.einsum("tij,tjc->tic", factors, runs)
    y = (mixed if weight is None else mixed * weight).reshape(len(x), -1).astype(np.float32)
    return [y if residual is None else y + residual]
