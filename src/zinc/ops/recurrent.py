"""Ops with recurrent state: Gated DeltaNet (Yang et al., arXiv:2412.06464).

Kimi Delta Attention (Kimi Team 2025, arXiv:2510.26692) is the same with a decay for each channel of
the keys instead of one for each head.

A layer is causal_conv (zinc.ops.convolution) over [q | k | v], delta_rule over its result, and
gated_norm. The rows of a step may belong to several sequences. Each op finds the state of a
sequence by `Step.state_slot`, processes its rows in order and stores the new state. A sequence
whose first position in the step is 0 starts from zeros, so slots need not be cleared.

`delta_rule` is the plain recurrence, token by token. `delta_rule_in_chunks` computes the same in
the chunkwise form, with the state layout of kernels; a test compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from zinc.core.dataclass import dataclass
from zinc.ops.cases import Case
from zinc.ops.costs import elementwise_cost
from zinc.ops.elementwise import Float64Array, sigmoid
from zinc.ops.node import Node
from zinc.ops.norm import normalise
from zinc.ops.operands import rows, state, vector
from zinc.ops.recurrent_state import CHUNK, StateView, sequences, with_rollback
from zinc.ops.registry import Attrs, Cost, Division, Phase, op
from zinc.ops.step import Step
from zinc.ops.values import FloatArray, RecurrentState

# Added to the sum of squares of a q or k head: a constant of the published model code.
L2_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class DeltaShape:
    """The head sizes of a delta rule: n_v_heads states [k_dim, v_dim] share n_k_heads keys.

    per_channel: each row of a state decays by itself, else all rows alike.
    """

    n_k_heads: int
    n_v_heads: int
    k_dim: int
    v_dim: int
    per_channel: bool = False

    @property
    def channels(self) -> int:
        """Decays of a head."""
        return self.k_dim if self.per_channel else 1

    @property
    def decay_cols(self) -> int:
        """Decays of all heads."""
        return self.n_v_heads * self.channels

    @property
    def k_cols(self) -> int:
        return self.n_k_heads * self.k_dim

    @property
    def v_cols(self) -> int:
        return self.n_v_heads * self.v_dim

    @property
    def qkv_cols(self) -> int:
        return 2 * self.k_cols + self.v_cols

    @property
    def matrix_floats(self) -> int:
        return self.k_dim * self.v_cols

    @property
    def state_floats(self) -> int:
        """Number of floats of a slot without `rollback`.

        Each value head has one part, which one task writes:

        S  [k_dim, v_dim]  after the last whole chunk
        k  [k_dim, CHUNK]  of later positions: position p is column p mod CHUNK
        d  [CHUNK, v_dim]
        g  [channels, CHUNK]

        With `rollback`, a slot is two of these halves. Chunk c uses half c mod 2: S there is the
        state before the chunk. The end of a chunk writes the new S to the other half, so the old
        one stays valid until the next chunk ends.
        """
        later = CHUNK * (self.k_dim + self.v_dim + self.channels)
        return self.n_v_heads * (self.k_dim * self.v_dim + later)


# -- delta rule ------------------------------------------------------------------------------------


def _delta_cost(node: Node) -> Cost:
    """Return the cost of the chunkwise form: two products with S for each row."""
    qkv, out = node.rows("qkv"), node.outputs[0]
    shape = delta_shape(node.attrs)
    inside = CHUNK // 2 * (3 * shape.v_cols + 2 * shape.n_v_heads * shape.k_dim)
    return Cost(
        row_bytes=4 * (qkv.cols + shape.decay_cols + shape.n_v_heads + out.cols),
        row_flops=6 * shape.matrix_floats + 2 * inside,
        sequence_bytes=4 * shape.state_floats,
    )


def delta_case(
    name: str,
    shape: DeltaShape,
    lengths: Sequence[int],
    *,
    grouped: bool = False,
    decay_rate: float = 1.0,
    floor: float = 0.0,
) -> Case:
    """Return a case with random rows. `decay_rate` scales how fast the state decays.

    floor: the lowest log g, 0 for none.
    """
    case = Case(name, sum(lengths), sequences=lengths)
    heads = shape.n_v_heads
    out = case.graph.delta_rule(
        case.rows(shape.qkv_cols),
        case.rows(shape.decay_cols, scale=2.0),
        case.rows(heads, scale=2.0),
        case.given(-decay_rate * np.exp(case.rng.standard_normal(heads)).astype(np.float32)),
        case.vector(shape.decay_cols),
        RecurrentState("delta", shape.state_floats),
        n_k_heads=shape.n_k_heads,
        k_dim=shape.k_dim,
        v_dim=shape.v_dim,
        grouped=grouped,
        floor=floor,
    )
    return case.returns(out)


def _delta_cases() -> Iterator[Case]:
    yield delta_case("prompt", DeltaShape(2, 4, 32, 32), (150,), decay_rate=0.02)
    yield delta_case("ragged", DeltaShape(2, 6, 16, 48), (1, 33, 64, 5), decay_rate=0.2)
    yield delta_case("grouped", DeltaShape(2, 6, 48, 16), (70, 3), grouped=True, decay_rate=0.2)
    yield delta_case("equal", DeltaShape(3, 3, 128, 128), (1, 1, 40), decay_rate=0.2)
    yield delta_case("forgetful", DeltaShape(1, 2, 32, 32), (100,), decay_rate=40.0)
    yield delta_case("channels", DeltaShape(2, 2, 32, 48, True), (1, 33, 64, 5), decay_rate=0.2)
    yield delta_case("channels-shared", DeltaShape(2, 4, 128, 32, True), (20,), decay_rate=20.0)
    yield delta_case("channels-floor", DeltaShape(2, 2, 16, 16, True), (70, 3), floor=-5.0)
    yield delta_case("channels-floor-few", DeltaShape(2, 2, 16, 16, True), (1, 3), floor=-5.0)
    yield delta_case("channels-wide", DeltaShape(1, 2, 128, 128, True), (150, 9), decay_rate=3.0)


def _delta_division(node: Node) -> Division:
    """Return the division by key heads, each with its value heads.

    The value heads of a key head are neighbours, or n_k_heads apart.
    """
    shape = delta_shape(node.attrs)
    each = 1 if node.attrs["grouped"] else shape.n_v_heads // shape.n_k_heads
    heads, values = (size // each for size in (shape.n_v_heads, shape.v_cols))
    return Division(
        shape.n_k_heads,
        sections={
            "qkv": (shape.k_cols, shape.k_cols, *(values,) * each),
            **dict.fromkeys(("beta", "decay"), (heads,) * each),
            **dict.fromkeys(("alpha", "decay_bias"), (heads * shape.channels,) * each),
            "out": (values,) * each,
        },
        counts=("n_k_heads", "n_v_heads"),
    )


def _delta_rollback(node: Node, rows: int) -> Node:
    """Return the node with a state of two halves, which is enough for up to CHUNK rows."""
    return with_rollback(node, rows, 2 * delta_shape(node.attrs).state_floats)


@op(
    rows("qkv"),
    rows("alpha"),
    rows("beta"),
    vector("decay"),
    vector("decay_bias"),
    state("state", written=True),
    cost=_delta_cost,
    cases=_delta_cases,
    tolerance=1e-4,
    phase=Phase.RECURRENT,
    rollback=_delta_rollback,
    division=_delta_division,
)
def delta_rule(
    step: Step,
    attrs: Attrs,
    qkv: FloatArray,
    alpha: FloatArray,
    beta: FloatArray,
    decay: FloatArray,
    decay_bias: FloatArray,
    state: StateView,
) -> Sequence[FloatArray]:
    """Run the gated delta rule for each value head, token by token.

        g = exp(decay * softplus(alpha + decay_bias)),  b = sigmoid(beta)
        q, k = q / |q| / sqrt(k_dim), k / |k|
        S = g S,  d = b (v - S^T k),  S = S + k d^T,  o = S^T q

    With the attribute `per_channel`, alpha and decay_bias have an element for each column of the
    keys of a value head, and so has g, which multiplies the rows of S. With the attribute `floor`,
    the decay has a lower bound: g = exp(floor * sigmoid(decay * (alpha + decay_bias))).

    Rows are [q of each key head | k of each key head | v of each value head]. The state is S in
    float32; with `rollback` it is that of `delta_rule_in_chunks`, which then runs instead.

    A task of a kernel is one value head of one sequence. It processes its rows with S in cache, in
    the chunkwise form over chunks of CHUNK positions. A single token takes the same path as a
    prompt: S is read, and written only when its chunk is full, so decode moves half the bytes of
    the plain recurrence, and the result does not depend on how a prompt was split. Lanes are
    columns of S.
    """
    if attrs.get("rollback"):
        return delta_rule_in_chunks(step, attrs, qkv, alpha, beta, decay, decay_bias, state)
    shape = delta_shape(attrs)
    q, k, v = _heads(qkv, shape, bool(attrs["grouped"]))
    g, b = _decay(attrs, alpha, decay, decay_bias), sigmoid(beta.astype(np.float64))
    o = np.empty((len(qkv), shape.n_v_heads, shape.v_dim), np.float32)
    for s, span in sequences(step):
        stored = slot_views(state.at(step, s), shape)[0]
        matrix = stored.astype(np.float64)
        for t in range(span.start, span.stop):
            matrix *= g[t, :, :, None]
            d = b[t, :, None] * (v[t] - np.matmul(k[t, :, None], matrix)[:, 0])
            matrix += k[t, :, :, None] * d[:, None]
            o[t] = np.matmul(q[t, :, None], matrix)[:, 0]
        stored[:] = matrix
    return [o.reshape(len(o), -1)]


def delta_rule_in_chunks(
    step: Step,
    attrs: Attrs,
    qkv: FloatArray,
    alpha: FloatArray,
    beta: FloatArray,
    decay: FloatArray,
    decay_bias: FloatArray,
    state: StateView,
) -> Sequence[FloatArray]:
    """Run `delta_rule` in the chunkwise form, with the slot layout of `DeltaShape.state_floats`.

    Let S be the state after the last whole chunk, G_t the product of g since then, and j range over
    the positions of the chunk (section 3.3 of the paper):

        d_t = b_t (v_t - G_t S^T k_t - sum over j < t of (G_t / G_j) (k_j . k_t) d_j)
        o_t = G_t S^T q_t + sum over j <= t of (G_t / G_j) (k_j . q_t) d_j
        S'  = G S + sum over j of (G / G_j) k_j d_j^T      at the end of the chunk

    The products with S and of k with k and q are matrix products over the rows of the chunk; only
    the sum over j < t goes row by row. Row t does not depend on later rows, so a chunk may stop at
    any row, keep k, d and g of its rows in the slot and continue in the next step. G_t / G_j is a
    product of factors up to 1: differences of sums of log g would lose precision with a fast decay.
    Decays for each channel scale the columns of k_t and q_t there: (G_t / G_j k_j) . k_t.
    """
    shape = delta_shape(attrs)
    q, k_rows, v = _heads(qkv, shape, bool(attrs["grouped"]))
    g, b = _decay(attrs, alpha, decay, decay_bias), sigmoid(beta.astype(np.float64))
    o = np.empty((len(qkv), shape.n_v_heads, shape.v_dim), np.float32)
    for s, span in sequences(step):
        halves = state.at(step, s).reshape(2 if attrs.get("rollback") else 1, -1)
        at, position = span.start, int(step.positions[span.start])
        while at < span.stop:
            chunk, old = divmod(position, CHUNK)  # old: rows of the chunk from earlier steps
            matrix, k_kept, d, g_kept = slot_views(halves[chunk % len(halves)], shape)
            n = min(CHUNK - old, span.stop - at)
            new, end = slice(at, at + n), old + n
            k_kept[:, :, old:end] = k_rows[new].transpose(1, 2, 0)
            g_kept[:, :, old:end] = g[new].transpose(1, 2, 0)
            ratio, whole = decay_products(g_kept[:, :, :end])
            left = ratio[:, :, -1]  # [heads, channels, rows], from each row to the end of the chunk
            ratio, whole = ratio[:, :, old:], whole[:, :, old:].transpose(0, 2, 1)
            k, k_new, q_new = k_kept[:, :, :end], k_rows[new], q[new].transpose(1, 0, 2)
            k_new = k_new.transpose(1, 0, 2)
            k_by_k, k_by_q = _decayed(ratio, k_new, k), _decayed(ratio, q_new, k)
            rest = v[new].transpose(1, 0, 2) - (whole * k_new) @ matrix
            for i in range(n):
                known = k_by_k[:, i, None, : old + i] @ d[:, : old + i]
                d[:, old + i] = b[at + i, :, None] * (rest[:, i] - known[:, 0])
            mixed = (whole * q_new) @ matrix + k_by_q @ d[:, :end]
            o[new] = mixed.transpose(1, 0, 2)
            if end == CHUNK:
                after = slot_views(halves[(chunk + 1) % len(halves)], shape)[0]
                after[:] = whole[:, -1, :, None] * matrix + (k * left) @ d
            at, position = at + n, position + n
    return [o.reshape(len(o), -1)]


def decay_products(g: FloatArray) -> tuple[Float64Array, Float64Array]:
    """Return G_t / G_j [..., t, j], 0 for j > t, and G_t [..., t], from g [..., rows]."""
    n = g.shape[-1]
    decay = np.zeros((*g.shape, n))
    for t in range(n):
        decay[..., t, :] = decay[..., t - 1, :] * g[..., t, None]
        decay[..., t, t] = 1.0
    return decay, np.cumprod(g, axis=-1, dtype=np.float64)


def _decayed(ratio: Float64Array, rows: Float64Array, k: FloatArray) -> Float64Array:
    """Return the products [heads, t, j] of rows [heads, t, k_dim] with keys k [heads, k_dim, j].

    ratio [heads, channels, t, j]: the decay from row j to row t.
    """
    if ratio.shape[1] == 1:
        found: Float64Array = ratio[:, 0] * (rows @ k)
    else:
        found = np.einsum("hctj,htc,hcj->htj", ratio, rows, k, optimize=True)
    return found


def slot_views(state: FloatArray, shape: DeltaShape) -> tuple[FloatArray, ...]:
    """Return views of S, k, d and g of each head of a slot, or of half a slot."""
    heads = state.reshape(shape.n_v_heads, -1)
    views, at = [], 0
    for dims in (
        (shape.k_dim, shape.v_dim),
        (shape.k_dim, CHUNK),
        (CHUNK, shape.v_dim),
        (shape.channels, CHUNK),
    ):
        n = math.prod(dims)
        views.append(heads[:, at : at + n].reshape(shape.n_v_heads, *dims))
        at += n
    return tuple(views)


def delta_shape(attrs: Attrs) -> DeltaShape:
    """Return the sizes in the attributes of a node."""
    n_k_heads, n_v_heads, k_dim, v_dim = (
        int(attrs[x]) for x in ("n_k_heads", "n_v_heads", "k_dim", "v_dim")
    )
    return DeltaShape(n_k_heads, n_v_heads, k_dim, v_dim, "per_channel" in attrs)


def _heads(
    qkv: FloatArray, shape: DeltaShape, grouped: bool
) -> tuple[Float64Array, Float64Array, Float64Array]:
    """Return normalised q and k [tokens, n_v_heads, k_dim], and v [tokens, n_v_heads, v_dim]."""
    q, k, v = np.split(qkv.astype(np.float64), [shape.k_cols, 2 * shape.k_cols], axis=1)
    q, k = (_unit(x.reshape(-1, shape.n_k_heads, shape.k_dim)) for x in (q, k))
    q = _spread(q, shape, grouped) * shape.k_dim**-0.5
    return q, _spread(k, shape, grouped), v.reshape(-1, shape.n_v_heads, shape.v_dim)


def _unit(x: Float64Array | FloatArray) -> Float64Array:
    """Return each head divided by its length."""
    wide = x.astype(np.float64)
    unit: Float64Array = wide / np.sqrt(np.square(wide).sum(axis=-1, keepdims=True) + L2_EPS)
    return unit


def _spread(x: Float64Array, shape: DeltaShape, grouped: bool) -> Float64Array:
    """Return the key head of each value head: [tokens, n_v_heads, k_dim]."""
    times = shape.n_v_heads // shape.n_k_heads
    return np.repeat(x, times, axis=1) if grouped else np.tile(x, (1, times, 1))


def _decay(attrs: Attrs, alpha: FloatArray, a: FloatArray, bias: FloatArray) -> Float64Array:
    """Return g [tokens, n_v_heads, channels] (see `delta_rule`), without overflow."""
    x = np.add(alpha, bias, dtype=np.float64).reshape(len(alpha), len(a), -1)
    rate = a[:, None].astype(np.float64)
    floor = float(attrs.get("floor", 0.0))
    return np.exp(floor * sigmoid(rate * x) if floor else rate * np.logaddexp(0.0, x))


# -- gated norm ------------------------------------------------------------------------------------


def _gated_cases() -> Iterator[Case]:
    for cols, group in ((64, 32), (256, 128)):
        case = Case(f"{cols}by{group}")
        x, z, weight = case.rows(cols), case.rows(cols, scale=3.0), case.vector(group)
        yield case.returns(case.graph.gated_norm(x, z, weight, eps=1e-6))
    for cols, group in ((96, 96), (256, 64)):
        case = Case(f"{cols}by{group}-gate-first")
        x, z, weight = case.rows(cols), case.rows(cols, scale=3.0), case.vector(cols)
        y = case.graph.gated_norm(x, z, weight, eps=1e-6, group=group, gate_first=True)
        yield case.returns(y)


@op(
    rows("x"),
    rows("z"),
    vector("weight"),
    cost=elementwise_cost,
    cases=_gated_cases,
    phase=Phase.RECURRENT,
    row_wise=True,
    stores_formats=True,
    division=lambda node: Division(
        node.outputs[0].cols // int(node.attrs["group"]),
        whole=frozenset[str]() if node.attrs["gate_first"] else frozenset({"weight"}),
    ),
)
def gated_norm(
    step: Step, attrs: Attrs, x: FloatArray, z: FloatArray, weight: FloatArray
) -> Sequence[FloatArray]:
    """Return rms_norm of each run of `group` columns of x, times weight [group], times silu(z).

    With the attribute `gate_first`, return rms_norm of the runs of x * silu(z), times a weight for
    each column. Kernels may store the result quantised.
    """
    gate = z.astype(np.float64)
    gate, group, eps = gate * sigmoid(gate), int(attrs["group"]), float(attrs["eps"])
    if attrs["gate_first"]:
        gated = (x * gate).astype(np.float32)
        return [normalise(gated, None, group, eps) * weight]
    return [(normalise(x, weight, group, eps) * gate).astype(np.float32)]
