"""The short causal convolution of recurrent layers, whose state is its last rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from zinc.ops.cases import Case
from zinc.ops.elementwise import sigmoid
from zinc.ops.node import Node
from zinc.ops.operands import rows, state, vector
from zinc.ops.recurrent_state import StateView, sequences, with_rollback
from zinc.ops.registry import Attrs, Cost, Division, Phase, op
from zinc.ops.step import Step
from zinc.ops.values import FloatArray, RecurrentState
from zinc.quant.blocks import row_bytes


def _cost(node: Node) -> Cost:
    x, weight = node.rows("x"), node.weight("weight")
    taps = int(node.attrs["taps"])
    return Cost(
        fixed_bytes=row_bytes(weight.type, weight.cols),
        row_bytes=8 * x.cols,
        row_flops=(2 * taps + 4) * x.cols,
        sequence_bytes=8 * (taps - 1) * x.cols,
    )


def _cases() -> Iterator[Case]:
    yield conv_case("48x4", 48, 4)
    yield conv_case("80x2", 80, 2)
    yield conv_case("48x4-bias", 48, 4, bias=True)
    yield conv_case("80x3-linear", 80, 3, silu=False)


def conv_case(
    name: str,
    cols: int,
    taps: int,
    *,
    lengths: Sequence[int] = (1, 40, 2, 7),
    bias: bool = False,
    silu: bool = True,
) -> Case:
    """Return a case with random rows of sequences of these lengths."""
    case = Case(name, sum(lengths), sequences=lengths)
    state = RecurrentState("conv", (taps - 1) * cols)
    x, weight = case.rows(cols), case.vector(cols * taps)
    added = case.vector(cols) if bias else None
    return case.returns(case.graph.causal_conv(x, weight, state, bias=added, silu=silu))


def _rollback(node: Node, rows: int) -> Node:
    """Return the node with a state of `rows` more rows."""
    floats = (int(node.attrs["taps"]) - 1 + rows) * node.rows("x").cols
    return with_rollback(node, rows, floats)


@op(
    rows("x", in_place=True),
    vector("weight"),
    vector("bias", optional=True),
    state("state", written=True),
    cost=_cost,
    cases=_cases,
    phase=Phase.RECURRENT,
    rollback=_rollback,
    division=lambda node: Division(node.outputs[0].cols),
)
def causal_conv(
    step: Step,
    attrs: Attrs,
    x: FloatArray,
    weight: FloatArray,
    bias: FloatArray | None,
    state: StateView,
) -> Sequence[FloatArray]:
    """Return y[t] = f(bias + sum over taps i of weight[:, i] * x[t - (taps - 1) + i]).

    f is SiLU with the attribute `silu`, else the identity. Rows before the first position are
    zeros. The state is the last taps - 1 rows of x, oldest first. With `rollback` it is a ring of
    taps - 1 + rollback rows: the row of position p is row p mod (taps - 1 + rollback).

    Kernels process chunks of 16 columns over all rows of the step, with the taps and the last rows
    in registers, so y may be stored in place of x. The weight is transposed once, in preparation.
    """
    taps, rollback = int(attrs["taps"]), int(attrs.get("rollback", 0))
    kernel = weight.reshape(-1, taps)
    y = np.empty_like(x)
    for s, span in sequences(step):
        stored = state.at(step, s).reshape(taps - 1 + rollback, -1)
        n, first = span.stop - span.start, int(step.positions[span.start])
        # The rows of the state that hold positions [first - (taps - 1), first + n).
        places = np.arange(first - (taps - 1), first + n) % len(stored)
        old = stored[places[: taps - 1]] if rollback else stored
        line = np.concatenate([old, x[span]])
        total = sum(line[i : i + n].astype(np.float64) * kernel[:, i] for i in range(taps))
        total = np.asarray(total if bias is None else total + bias)
        y[span] = total * sigmoid(total) if attrs["silu"] else total
        if rollback:
            stored[places[-len(stored) :]] = line[-len(stored) :]
        else:
            stored[:] = line[n:]
    return [y]
