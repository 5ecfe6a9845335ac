"""The recurrence of RWKV-7 (Peng et al. 2025, arXiv:2503.14456), and the token shift before it.

A layer mixes each row with the one before it, projects the mixtures, and runs `wkv7`. Its state
update is a delta rule that removes along another vector than it writes, and all its factors differ
by channel, so the chunkwise form of zinc.ops.recurrent does not apply. Kernels go token by token
with the state in registers or cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from zinc.ops.cases import Case
from zinc.ops.elementwise import sigmoid
from zinc.ops.node import Node
from zinc.ops.operands import rows, state, vector
from zinc.ops.recurrent_state import StateView, sequences, with_rollback
from zinc.ops.registry import Attrs, Cost, Phase, op
from zinc.ops.step import Step
from zinc.ops.values import FloatArray, RecurrentState

# The logarithm of the strongest decay, and the least length by which a key is divided: constants of
# the published model code.
LOG_DECAY = -0.606531
LEAST_LENGTH = 1e-12

# -- token shift -----------------------------------------------------------------------------------


def _shift_cost(node: Node) -> Cost:
    x, out = node.rows("x"), node.outputs[0]
    return Cost(
        fixed_bytes=4 * out.cols,
        row_bytes=4 * (x.cols + out.cols),
        row_flops=2 * out.cols + x.cols,
        sequence_bytes=8 * x.cols,
    )


def shift_case(name: str, cols: int, mixtures: int, lengths: Sequence[int]) -> Case:
    """Return a case of `mixtures` runs of `cols` columns."""
    case = Case(name, sum(lengths), sequences=lengths)
    state = RecurrentState("shift", cols)
    out = case.graph.token_shift(case.rows(cols), case.vector(mixtures * cols), state)
    return case.returns(out)


def _shift_cases() -> Iterator[Case]:
    yield shift_case("48x6", 48, 6, (1, 33, 2, 7))
    yield shift_case("90x1", 90, 1, (40, 1))


def _shift_rollback(node: Node, rows: int) -> Node:
    """Return the node with a ring of `rows` more rows."""
    return with_rollback(node, rows, (1 + rows) * node.rows("x").cols)


@op(
    rows("x"),
    vector("weight"),
    state("state", written=True),
    cost=_shift_cost,
    cases=_shift_cases,
    phase=Phase.RECURRENT,
    rollback=_shift_rollback,
)
def token_shift(
    step: Step, attrs: Attrs, x: FloatArray, weight: FloatArray, state: StateView
) -> Sequence[FloatArray]:
    """Return y[t] = x[t] + weight * (x[t - 1] - x[t]) for each run of columns of y.

    The weight has an element for each column of y, which is as many runs as wide as x. The row
    before the first position is zeros. The state is the last row of x. With `rollback` it is a ring
    of 1 + rollback rows: the row of position p is row p mod (1 + rollback).
    """
    cols, ring = x.shape[1], 1 + int(attrs.get("rollback", 0))
    factors = weight.reshape(-1, cols).astype(np.float64)
    y = np.empty((len(x), factors.size), np.float32)
    for s, span in sequences(step):
        stored = state.at(step, s).reshape(ring, cols)
        first, n = int(step.positions[span.start]), span.stop - span.start
        before = np.concatenate([stored[None, (first - 1) % ring], x[span][:-1]])
        change = before.astype(np.float64) - x[span]
        y[span] = (x[span, None] + factors * change[:, None]).reshape(n, -1)
        kept = min(n, ring)
        stored[np.arange(first + n - kept, first + n) % ring] = x[span][-kept:]
    return [y]


# -- state update ----------------------------------------------------------------------------------


def _wkv_cost(node: Node) -> Cost:
    r, out = node.rows("r"), node.outputs[0]
    n_rows = sum(node.input(name) is not None for name in ("first", "mix")) + 5
    floats = r.cols * int(node.attrs["head_dim"])
    return Cost(
        fixed_bytes=12 * r.cols,
        row_bytes=4 * (n_rows * r.cols + out.cols),
        row_flops=9 * floats,
        sequence_bytes=8 * floats,
    )


def wkv_case(
    name: str, n_heads: int, head_dim: int, lengths: Sequence[int], *, mixed: bool = True
) -> Case:
    """Return a case with random rows. mixed: values are mixed with those of the first layer."""
    case = Case(name, sum(lengths), sequences=lengths)
    cols = n_heads * head_dim
    r, w, k, v, a = (case.rows(cols, scale) for scale in (0.3, 3.0, 1.0, 1.0, 2.0))
    first, mix = (case.rows(cols), case.rows(cols)) if mixed else (None, None)
    out = case.graph.wkv7(
        r,
        w,
        k,
        v,
        a,
        first,
        mix,
        removal=case.vector(cols),
        scaling=case.vector(cols),
        bonus=case.vector(cols),
        state=RecurrentState("wkv", cols * head_dim),
        head_dim=head_dim,
    )
    return case.returns(out)


def _wkv_cases() -> Iterator[Case]:
    yield wkv_case("3x64", 3, 64, (1, 33, 16, 7))
    yield wkv_case("2x32-first", 2, 32, (40, 2), mixed=False)
    yield wkv_case("2x16", 2, 16, (3, 18))


def _wkv_rollback(node: Node, rows: int) -> Node:
    """Return the node with a ring of `rows` more states."""
    floats = node.rows("r").cols * int(node.attrs["head_dim"])
    return with_rollback(node, rows, (1 + rows) * floats)


@op(
    rows("r"),
    rows("w"),
    rows("k"),
    rows("v"),
    rows("a"),
    rows("first", optional=True),
    rows("mix", optional=True),
    vector("removal"),
    vector("scaling"),
    vector("bonus"),
    state("state", written=True),
    cost=_wkv_cost,
    cases=_wkv_cases,
    tolerance=1e-4,
    phase=Phase.RECURRENT,
    rollback=_wkv_rollback,
)
def wkv7(
    step: Step,
    attrs: Attrs,
    r: FloatArray,
    w: FloatArray,
    k: FloatArray,
    v: FloatArray,
    a: FloatArray,
    first: FloatArray | None,
    mix: FloatArray | None,
    removal: FloatArray,
    scaling: FloatArray,
    bonus: FloatArray,
    state: StateView,
) -> Sequence[FloatArray]:
    """Run the recurrence of RWKV-7 for each head of `head_dim` columns, token by token.

        g = exp(LOG_DECAY * sigmoid(w)),  a = sigmoid(a),  v = v + sigmoid(mix) * (first - v)
        c = k * removal / |k * removal|,  k = k * (1 + (a - 1) * scaling)
        S = g S - (c * a) (S^T c)^T + k v^T,  o = S^T r,  e = (r . (bonus * k)) v

    Products of vectors are by channel, S^T c is that of S before the update, and g multiplies the
    rows of S. A row of the result is [o of each head | e of each head]. Without `first` and `mix`,
    v stays as it is.

    The state is S [heads, head_dim, head_dim] in float32. With `rollback` it is a ring of 1 +
    rollback states: that after position p is state p mod (1 + rollback).
    """
    dim, ring = int(attrs["head_dim"]), 1 + int(attrs.get("rollback", 0))
    shape = (len(r), -1, dim)
    q, decay, keys, values, rate = (x.astype(np.float64).reshape(shape) for x in (r, w, k, v, a))
    g, rate = np.exp(LOG_DECAY * sigmoid(decay)), sigmoid(rate)
    if first is not None and mix is not None:
        share = sigmoid(mix.astype(np.float64)).reshape(shape)
        values = values + share * (first.reshape(shape) - values)
    c = keys * removal.reshape(1, -1, dim)
    c = c / np.maximum(np.sqrt(np.square(c).sum(axis=-1, keepdims=True)), LEAST_LENGTH)
    keys = keys * (1 + (rate - 1) * scaling.reshape(1, -1, dim))
    e = (q * keys * bonus.reshape(1, -1, dim)).sum(axis=-1, keepdims=True) * values
    o = np.empty_like(values)
    for s, span in sequences(step):
        stored = state.at(step, s).reshape(ring, -1, dim, dim)
        position = int(step.positions[span.start])
        now = stored[(position - 1) % ring].astype(np.float64)
        for t in range(span.start, span.stop):
            seen = np.matmul(c[t, :, None], now)
            now = g[t, :, :, None] * now - (c[t] * rate[t])[:, :, None] * seen
            now += keys[t, :, :, None] * values[t, :, None]
            o[t] = np.matmul(q[t, :, None], now)[:, 0]
            stored[(position + t - span.start) % ring] = now
    return [np.concatenate([x.reshape(len(x), -1) for x in (o, e)], axis=1).astype(np.float32)]
