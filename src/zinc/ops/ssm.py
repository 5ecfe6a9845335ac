"""The selective scan of Mamba-2 (Dao and Gu, arXiv:2405.21060).

It is a delta rule without the correction: B is the key, C the query, and dt x the value that is
added to the state. So it has the state slots of `zinc.ops.recurrent.DeltaShape`, whose key heads
are the groups, k_dim the size of a state and v_dim the width of a head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from zinc.ops.cases import Case
from zinc.ops.elementwise import Float64Array
from zinc.ops.node import Node
from zinc.ops.operands import rows, state, vector
from zinc.ops.recurrent import DeltaShape, decay_products, delta_shape, slot_views
from zinc.ops.recurrent_state import CHUNK, StateView, sequences, with_rollback
from zinc.ops.registry import Attrs, Cost, Division, Phase, op
from zinc.ops.step import Step
from zinc.ops.values import FloatArray, RecurrentState


def _cost(node: Node) -> Cost:
    """Return the cost of the chunkwise form: two products with S for each row."""
    shape = delta_shape(node.attrs)
    inside = CHUNK // 2 * (2 * shape.v_cols + shape.n_v_heads * shape.k_dim)
    return Cost(
        row_bytes=4 * (node.rows("xbc").cols + shape.n_v_heads + node.outputs[0].cols),
        row_flops=4 * shape.matrix_floats + 2 * inside,
        sequence_bytes=4 * shape.state_floats,
    )


def ssm_case(
    name: str, shape: DeltaShape, lengths: Sequence[int], *, decay_rate: float = 1.0
) -> Case:
    """Return a case with random rows. `decay_rate` scales how fast the state decays."""
    case, heads = Case(name, sum(lengths), sequences=lengths), shape.n_v_heads
    out = case.graph.ssm_scan(
        case.rows(shape.qkv_cols),
        case.rows(heads, scale=2.0),
        case.given(-decay_rate * np.exp(case.rng.standard_normal(heads)).astype(np.float32)),
        case.vector(heads),
        case.vector(heads),
        RecurrentState("ssm", shape.state_floats),
        n_groups=shape.n_k_heads,
        state_dim=shape.k_dim,
        head_dim=shape.v_dim,
    )
    return case.returns(out)


def _cases() -> Iterator[Case]:
    yield ssm_case("prompt", DeltaShape(1, 4, 32, 32), (150,), decay_rate=0.02)
    yield ssm_case("uneven", DeltaShape(2, 6, 16, 48), (1, 33, 64, 5), decay_rate=0.2)
    yield ssm_case("equal", DeltaShape(3, 3, 128, 64), (1, 1, 40), decay_rate=0.2)
    yield ssm_case("forgetful", DeltaShape(1, 2, 32, 16), (100,), decay_rate=40.0)


def _division(node: Node) -> Division:
    """Return the division by groups, each with its heads."""
    shape = delta_shape(node.attrs)
    return Division(
        shape.n_k_heads,
        sections={"xbc": (shape.v_cols, shape.k_cols, shape.k_cols)},
        counts=("n_k_heads", "n_v_heads"),
    )


def _rollback(node: Node, rows: int) -> Node:
    """Return the node with a state of two halves, which is enough for up to CHUNK rows."""
    return with_rollback(node, rows, 2 * delta_shape(node.attrs).state_floats)


@op(
    rows("xbc"),
    rows("dt"),
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
def ssm_scan(
    step: Step,
    attrs: Attrs,
    xbc: FloatArray,
    dt: FloatArray,
    decay: FloatArray,
    dt_bias: FloatArray,
    skip: FloatArray,
    state: StateView,
) -> Sequence[FloatArray]:
    """Run the scan of Mamba-2 for each head, token by token.

        dt = softplus(dt + dt_bias),  g = exp(decay * dt)
        S = g S + B (dt x)^T,  y = S^T C + skip x

    Rows are [x of each head | B of each group | C of each group]. The state is S in float32; with
    `rollback` it is that of `ssm_scan_in_chunks`, which then runs instead. Kernels process chunks
    like those of `delta_rule`.
    """
    if attrs.get("rollback"):
        return ssm_scan_in_chunks(step, attrs, xbc, dt, decay, dt_bias, skip, state)
    shape = delta_shape(attrs)
    x, b, c = _heads(xbc, shape)
    step_sizes, g = _discretised(dt, decay, dt_bias)
    y = np.empty(x.shape, np.float32)
    for s, span in sequences(step):
        stored = slot_views(state.at(step, s), shape)[0]
        matrix = stored.astype(np.float64)
        for t in range(span.start, span.stop):
            added = b[t, :, :, None] * (step_sizes[t, :, None] * x[t])[:, None]
            matrix = matrix * g[t, :, None, None] + added
            y[t] = np.matmul(c[t, :, None], matrix)[:, 0] + skip[:, None] * x[t]
        stored[:] = matrix
    return [y.reshape(len(y), -1)]


def ssm_scan_in_chunks(
    step: Step,
    attrs: Attrs,
    xbc: FloatArray,
    dt: FloatArray,
    decay: FloatArray,
    dt_bias: FloatArray,
    skip: FloatArray,
    state: StateView,
) -> Sequence[FloatArray]:
    """Run `ssm_scan` in the chunkwise form.

    Let S be the state after the last whole chunk, G_t the product of g since then, and j range over
    the positions of the chunk:

        y_t = G_t S^T C_t + sum over j <= t of (G_t / G_j) (B_j . C_t) dt_j x_j + skip x_t
        S'  = G S + sum over j of (G / G_j) B_j (dt_j x_j)^T      at the end of the chunk

    A slot keeps B as k and dt x as d (`DeltaShape.state_floats`).
    """
    shape = delta_shape(attrs)
    x, b, c = _heads(xbc, shape)
    step_sizes, g = _discretised(dt, decay, dt_bias)
    y = np.empty(x.shape, np.float32)
    for s, span in sequences(step):
        halves = state.at(step, s).reshape(2 if attrs.get("rollback") else 1, -1)
        at, position = span.start, int(step.positions[span.start])
        while at < span.stop:
            chunk, old = divmod(position, CHUNK)  # old: rows of the chunk from earlier steps
            matrix, b_kept, d, g_kept = slot_views(halves[chunk % len(halves)], shape)
            n = min(CHUNK - old, span.stop - at)
            new, end = slice(at, at + n), old + n
            b_kept[:, :, old:end], g_kept[:, 0, old:end] = b[new].transpose(1, 2, 0), g[new].T
            d[:, old:end] = (step_sizes[new, :, None] * x[new]).transpose(1, 0, 2)
            ratio, whole = decay_products(g_kept[:, 0, :end])
            c_new, known = c[new].transpose(1, 0, 2), b_kept[:, :, :end]
            mixed = whole[:, old:, None] * (c_new @ matrix)
            mixed += (ratio[:, old:] * (c_new @ known)) @ d[:, :end]
            y[new] = mixed.transpose(1, 0, 2) + skip[:, None] * x[new]
            if end == CHUNK:
                after = slot_views(halves[(chunk + 1) % len(halves)], shape)[0]
                left = ratio[:, -1:]  # [heads, 1, rows], decay to the end of the chunk
                after[:] = whole[:, -1:, None] * matrix + (known * left) @ d
            at, position = at + n, position + n
    return [y.reshape(len(y), -1)]


def _heads(xbc: FloatArray, shape: DeltaShape) -> tuple[Float64Array, Float64Array, Float64Array]:
    """Return x [tokens, heads, v_dim], and B and C [tokens, heads, k_dim]."""
    ends = [shape.v_cols, shape.v_cols + shape.k_cols]
    x, b, c = np.split(xbc.astype(np.float64), ends, axis=1)
    each = shape.n_v_heads // shape.n_k_heads
    b, c = (np.repeat(m.reshape(-1, shape.n_k_heads, shape.k_dim), each, axis=1) for m in (b, c))
    return x.reshape(-1, shape.n_v_heads, shape.v_dim), b, c


def _discretised(
    dt: FloatArray, decay: FloatArray, bias: FloatArray
) -> tuple[Float64Array, Float64Array]:
    """Return the step sizes softplus(dt + bias), without overflow, and g, both [tokens, heads]."""
    step_sizes: Float64Array = np.logaddexp(0.0, dt + bias, dtype=np.float64)
    return step_sizes, np.exp(decay * step_sizes)
