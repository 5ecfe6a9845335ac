"""The selective scan of Mamba (Gu and Dao, arXiv:2312.00752).

Each channel has a state of a few numbers, with a decay of its own for each. There is no form with
matrix products, so kernels go token by token with the state in registers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd

import numpy as np

from zinc.ops.cases import Case
from zinc.ops.node import Node
from zinc.ops.operands import rows, state, vector
from zinc.ops.recurrent_state import StateView, sequences, with_rollback
from zinc.ops.registry import Attrs, Cost, Division, Phase, op
from zinc.ops.step import Step
from zinc.ops.values import FloatArray, RecurrentState


def _cost(node: Node) -> Cost:
    x, b = node.rows("x"), node.rows("b")
    return Cost(
        fixed_bytes=4 * x.cols * b.cols,
        row_bytes=4 * (3 * x.cols + 2 * b.cols),
        row_flops=8 * x.cols * b.cols,
        sequence_bytes=8 * x.cols * b.cols,
    )


def scan_case(name: str, cols: int, size: int, lengths: Sequence[int]) -> Case:
    """Return a case of `cols` channels with states of `size` numbers."""
    case = Case(name, sum(lengths), sequences=lengths)
    decay = -np.exp(case.rng.standard_normal(cols * size)).astype(np.float32)
    out = case.graph.selective_scan(
        case.rows(cols),
        case.rows(cols, scale=2.0),
        case.rows(size),
        case.rows(size),
        case.given(decay),
        case.vector(cols),
        case.vector(cols),
        RecurrentState("scan", cols * size),
    )
    return case.returns(out)


def _cases() -> Iterator[Case]:
    yield scan_case("48x16", 48, 16, (1, 33, 7))
    yield scan_case("80x4", 80, 4, (40, 2))


def _division(node: Node) -> Division:
    """Return the division by channels, which kernels process in runs of 16."""
    cols = node.outputs[0].cols
    return Division(cols // gcd(cols, 16), whole=frozenset({"b", "c"}))


def _rollback(node: Node, rows: int) -> Node:
    """Return the node with a ring of `rows` more states."""
    return with_rollback(node, rows, (1 + rows) * node.rows("x").cols * node.rows("b").cols)


@op(
    rows("x"),
    rows("dt"),
    rows("b"),
    rows("c"),
    vector("decay"),
    vector("dt_bias"),
    vector("skip"),
    state("state", written=True),
    cost=_cost,
    cases=_cases,
    tolerance=1e-4,
    phase=Phase.RECURRENT,
    rollback=_rollback,
    division=_division,
)
def selective_scan(
    step: Step,
    attrs: Attrs,
    x: FloatArray,
    dt: FloatArray,
    b: FloatArray,
    c: FloatArray,
    decay: FloatArray,
    dt_bias: FloatArray,
    skip: FloatArray,
    state: StateView,
) -> Sequence[FloatArray]:
    """Run the scan of Mamba for each channel, token by token.

        dt = softplus(dt + dt_bias)
        S = exp(decay * dt) S + dt x B,  y = S . C + skip x

    x and dt have a column for each channel, B and C one for each number of a state. decay is flat,
    [channels, size]. The state is S [channels, size] in float32. With `rollback` it is a ring of
    1 + rollback states: that after position p is state p mod (1 + rollback). Kernels may store a
    state in another order.
    """
    size, ring = b.shape[1], 1 + int(attrs.get("rollback", 0))
    rates = decay.reshape(-1, size).astype(np.float64)
    step_sizes = np.logaddexp(0.0, dt + dt_bias, dtype=np.float64)
    y = np.empty_like(x)
    for s, span in sequences(step):
        stored = state.at(step, s).reshape(ring, -1, size)
        position = int(step.positions[span.start])
        now = stored[(position - 1) % ring].astype(np.float64)
        for t in range(span.start, span.stop):
            step_size = step_sizes[t, :, None]
            now = np.exp(rates * step_size) * now + step_size * x[t, :, None] * b[t]
            y[t] = now @ c[t].astype(np.float64) + skip * x[t]
            stored[(position + t - span.start) % ring] = now
    return [y]
