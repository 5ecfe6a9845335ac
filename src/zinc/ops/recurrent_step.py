"""Convolution, delta rule and gated norm of one Gated DeltaNet layer in one op, for decode.

It replaces `causal_conv`, `delta_rule` and `gated_norm` in steps with one token per sequence. A
kernel reads the state of each head once, and does not write the results of the first two ops to
memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import MappingProxyType

import numpy as np

from zinc.ops.cases import Case
from zinc.ops.convolution import causal_conv
from zinc.ops.costs import elementwise_cost
from zinc.ops.node import Node
from zinc.ops.operands import rows, state, vector
from zinc.ops.recurrent import DeltaShape, delta_rule, gated_norm
from zinc.ops.recurrent_state import StateView
from zinc.ops.registry import Alternative, Attrs, Cost, Phase, op
from zinc.ops.step import Step
from zinc.ops.values import FloatArray, RecurrentState


def _cost(node: Node) -> Cost:
    states = [x.floats for x in node.inputs if isinstance(x, RecurrentState)]
    plain = elementwise_cost(node)
    k_dim, v_cols = int(node.attrs["k_dim"]), node.outputs[0].cols
    return Cost(
        row_bytes=plain.row_bytes,
        row_flops=plain.row_flops + 8 * k_dim * v_cols,
        sequence_bytes=8 * sum(states),
    )


def _cases() -> Iterator[Case]:
    yield delta_step_case("shared", DeltaShape(2, 4, 32, 32), (1,), cached=3)
    yield delta_step_case("grouped", DeltaShape(1, 2, 64, 64), (1,), cached=3, grouped=True, taps=3)
    yield delta_step_case("sequences", DeltaShape(2, 4, 32, 64), (1, 1, 1), cached=3)


def delta_step_case(
    name: str,
    shape: DeltaShape,
    sequences: Sequence[int],
    *,
    cached: int = 0,
    grouped: bool = False,
    taps: int = 4,
) -> Case:
    """Return a case of the three ops over `sequences`, which have `cached` tokens before them."""
    case = Case(name, sum(sequences), sequences=sequences, cached=cached)
    graph, heads, cols = case.graph, shape.n_v_heads, shape.qkv_cols
    conv = RecurrentState("conv", (taps - 1) * cols)
    y = graph.delta_rule(
        graph.causal_conv(case.rows(cols), case.vector(taps * cols), conv),
        case.rows(heads, scale=2.0),
        case.rows(heads, scale=2.0),
        case.given(-np.exp(case.rng.standard_normal(heads)).astype(np.float32)),
        case.vector(heads),
        RecurrentState("delta", shape.state_floats),
        n_k_heads=shape.n_k_heads,
        k_dim=shape.k_dim,
        v_dim=shape.v_dim,
        grouped=grouped,
    )
    z = case.rows(shape.v_cols, scale=3.0)
    return case.returns(graph.gated_norm(y, z, case.vector(shape.v_dim), eps=1e-6))


def _fused(conv: Node, delta: Node, norm: Node) -> Node | None:
    """Return the fused node of the three ops of a layer, None for other kinds of them."""
    if "per_channel" in delta.attrs or "floor" in delta.attrs:
        return None
    if conv.input("bias") is not None or not conv.attrs["silu"] or norm.attrs["gate_first"]:
        return None
    names = ("alpha", "beta", "decay", "decay_bias", "state")
    inputs = (
        *(conv.input(name) for name in ("x", "weight", "state")),
        *(delta.input(name) for name in names),
        norm.input("z"),
        norm.input("weight"),
    )
    attrs = MappingProxyType({**conv.attrs, **delta.attrs, **norm.attrs})
    return Node("delta_step", inputs, norm.outputs, attrs, delta.label)


@op(
    rows("x"),
    vector("conv_weight"),
    state("conv_state", written=True),
    rows("alpha"),
    rows("beta"),
    vector("decay"),
    vector("decay_bias"),
    state("state", written=True),
    rows("z"),
    vector("norm"),
    cost=_cost,
    cases=_cases,
    tolerance=1e-4,
    phase=Phase.RECURRENT,
    stores_formats=True,
    optional=True,
    alternative=Alternative(("causal_conv", "delta_rule", "gated_norm"), _fused),
)
def delta_step(
    step: Step,
    attrs: Attrs,
    x: FloatArray,
    conv_weight: FloatArray,
    conv_state: StateView,
    alpha: FloatArray,
    beta: FloatArray,
    decay: FloatArray,
    decay_bias: FloatArray,
    state: StateView,
    z: FloatArray,
    norm: FloatArray,
) -> Sequence[FloatArray]:
    """Run causal_conv on x, delta_rule on the result, and gated_norm with z on its output.

    The attributes are those of the three ops.
    """
    (qkv,) = causal_conv(step, attrs, x, conv_weight, None, conv_state)
    (y,) = delta_rule(step, attrs, qkv, alpha, beta, decay, decay_bias, state)
    return gated_norm(step, attrs, y, z, norm)
