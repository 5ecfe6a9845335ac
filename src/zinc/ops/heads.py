"""Ops on the heads of a row: products with one matrix for each head, gates and concatenation.

Latent attention (DeepSeek-AI 2024, DeepSeek-V2, 2.1) needs `head_linear` and `concat_heads`: it
projects queries into the space of the cached latent, and the attended latents back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from zinc.ops.cases import WEIGHT_TYPES, Case
from zinc.ops.costs import elementwise_cost, weight_bytes
from zinc.ops.elementwise import sigmoid
from zinc.ops.node import Node
from zinc.ops.operands import matrix, rows
from zinc.ops.registry import Attrs, Cost, Division, Phase, op
from zinc.ops.step import Step
from zinc.ops.values import FloatArray
from zinc.quant.blocks import BLOCKS


def _cost(node: Node) -> Cost:
    x, weight = node.rows("x"), node.weight("weight")
    n_rows = weight.planes * weight.rows
    return Cost(
        fixed_bytes=weight_bytes(weight),
        row_bytes=4 * (x.cols + n_rows),
        row_flops=2 * n_rows * weight.cols,
    )


def _linear_cases() -> Iterator[Case]:
    for type in WEIGHT_TYPES:
        block = BLOCKS[type].block_size
        for n_heads, n_rows, n_cols, tokens in ((4, 96, max(32, block), 1), (3, 32, 256, 21)):
            case = Case(f"{BLOCKS[type].name}-{n_heads}x{n_rows}x{n_cols}", n_tokens=tokens)
            x, weight = case.rows(n_heads * n_cols), case.experts(n_heads, n_rows, n_cols, type)
            yield case.returns(case.graph.head_linear(x, weight))


@op(
    rows("x"),  # float32: each head is read once, so the kernel quantises it itself
    matrix("weight"),
    cost=_cost,
    cases=_linear_cases,
    phase=Phase.ATTENTION,
    row_wise=True,
    division=lambda node: Division(
        int(node.attrs["n_heads"]),
        by_plane=node.weight("weight").planes > 1,
        counts=("n_heads",),
    ),
)
def head_linear(
    step: Step, attrs: Attrs, x: FloatArray, weight: FloatArray
) -> Sequence[FloatArray]:
    """Return each head of x times its own matrix: head h of y is x[h] @ weight[h].T.

    weight is [heads, rows, cols], or [heads * rows, cols] with the same meaning. Kernels compute it
    as one grouped product whose groups are the heads.
    """
    n_heads, cols = int(attrs["n_heads"]), weight.shape[-1]
    y = np.einsum("thc,hrc->thr", x.reshape(-1, n_heads, cols), weight.reshape(n_heads, -1, cols))
    return [y.reshape(len(x), n_heads * y.shape[2]).astype(np.float32)]


def _concat_division(node: Node) -> Division:
    """Return the division by heads; of one head, by columns of sections of equal width."""
    n_heads = int(node.attrs["n_heads"])
    if n_heads > 1:
        return Division(n_heads, counts=("n_heads",))
    named = {"a": node.rows("a"), "b": node.rows("b"), "out": node.outputs[0]}
    width = math.gcd(named["a"].cols, named["b"].cols)
    sections = {name: (width,) * (x.cols // width) for name, x in named.items()}
    return Division(width, sections=sections)


def _concat_cases() -> Iterator[Case]:
    for n_heads in (1, 5):
        case = Case(f"{n_heads}")
        a, b = case.rows(16 * n_heads), case.rows(48 * n_heads)
        yield case.returns(case.graph.concat_heads(a, b, n_heads=n_heads))


@op(
    rows("a"),
    rows("b"),
    cost=elementwise_cost,
    cases=_concat_cases,
    phase=Phase.ATTENTION,
    row_wise=True,
    division=_concat_division,
)
def concat_heads(step: Step, attrs: Attrs, a: FloatArray, b: FloatArray) -> Sequence[FloatArray]:
    """Concatenate each head of a with the same head of b: [head h of a | head h of b]."""
    a, b = (x.reshape(len(x), int(attrs["n_heads"]), -1) for x in (a, b))
    return [np.concatenate([a, b], axis=2).reshape(len(a), -1)]


def _gate_cases() -> Iterator[Case]:
    for cols in (1, 4, 64):
        case = Case(f"{cols}")
        yield case.returns(case.graph.gate(case.rows(64), case.rows(cols, scale=3.0)))
    case = Case("3of66")
    yield case.returns(case.graph.gate(case.rows(66), case.rows(3, scale=3.0)))
    for cols in (1, 4, 64):
        case = Case(f"{cols}-softplus")
        x, g = case.rows(64), case.rows(cols, scale=5.0)
        yield case.returns(case.graph.gate(x, g, softplus=True))


def _gate_division(node: Node) -> Division:
    """Return the division by columns of g. All columns of x share a gate of one column."""
    cols = node.rows("g").cols
    return Division(node.outputs[0].cols, frozenset({"g"})) if cols == 1 else Division(cols)


@op(
    rows("x", in_place=True),
    rows("g"),
    cost=elementwise_cost,
    cases=_gate_cases,
    row_wise=True,
    stores_formats=True,
    division=_gate_division,
)
def gate(step: Step, attrs: Attrs, x: FloatArray, g: FloatArray) -> Sequence[FloatArray]:
    """Return x * sigmoid(g), where each column of g scales x.cols / g.cols columns of x.

    A gate per head has one column for each head; a gate of the whole row has one column. With the
    attribute `softplus`, return x * softplus(g).
    """
    wide = g.astype(np.float64)
    gates = np.logaddexp(0.0, wide) if attrs.get("softplus") else sigmoid(wide)
    factor = np.repeat(gates, x.shape[1] // g.shape[1], axis=1)
    return [(x * factor).astype(np.float32)]
