"""Rotary position embedding (Su et al., 2021) from a table of cosines and sines.

Every variant (linear, YaRN, Llama 3, frequency factors) is a vector of inverse frequencies and a
scale, computed once when a model is built (zinc.models.parts.rope). So a step computes one table
for all layers that share it, and kernels implement only the two pairings of dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from zinc.ops.attention import CacheView
from zinc.ops.cases import Case
from zinc.ops.costs import elementwise_cost
from zinc.ops.norm import normalise
from zinc.ops.operands import cache, rows, vector
from zinc.ops.registry import Attrs, Division, Phase, op
from zinc.ops.step import Step
from zinc.ops.values import FloatArray


def _table_cases() -> Iterator[Case]:
    case = Case("table", n_tokens=40)
    case.rows(16)
    table = case.graph.rope_table(case.rope_frequencies(32), scale=1.25)
    yield case.returns(table)
    case = Case("table-growing", n_tokens=40)
    case.rows(16)
    frequencies = case.rope_frequencies(32)
    yield case.returns(case.graph.rope_table(frequencies, log_scale=0.1, period=16))
    case = Case("table-growing-early", n_tokens=40)
    case.rows(16)
    frequencies = case.rope_frequencies(32)
    yield case.returns(case.graph.rope_table(frequencies, log_scale=0.1, period=16, offset=1))


@op(
    vector("inv_freq"),
    cost=elementwise_cost,
    cases=_table_cases,
    phase=Phase.ATTENTION,
)
def rope_table(step: Step, attrs: Attrs, inv_freq: FloatArray) -> Sequence[FloatArray]:
    """Return rows [cos | sin] of position * inv_freq, times scale: [tokens, 2 * len(inv_freq)].

    With `log_scale`, the scale grows by the factor
    1 + log_scale * log(1 + (position + offset) // period).
    """
    angle = step.positions[:, None].astype(np.float64) * inv_freq.astype(np.float64)
    table = np.concatenate([np.cos(angle), np.sin(angle)], axis=1) * float(attrs["scale"])
    if log_scale := float(attrs.get("log_scale", 0.0)):
        position = step.positions + int(attrs.get("offset", 0))
        grown = np.log(1.0 + position // int(attrs["period"]))
        table *= 1.0 + log_scale * grown[:, None]
    return [table.astype(np.float32)]


def rotate(x: FloatArray, table: FloatArray, head_dim: int, neox: bool) -> FloatArray:
    """Rotate the leading dimensions of each head of x [tokens, heads * head_dim].

    neox pairs dimension i with i + half, otherwise 2i with 2i + 1; half = table.cols / 2.
    """
    heads = x.reshape(len(x), -1, head_dim).copy()
    half = table.shape[1] // 2
    cos, sin = table[:, None, :half], table[:, None, half:]
    if neox:
        first, second = slice(0, half), slice(half, 2 * half)
    else:
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    a, b = heads[..., first].copy(), heads[..., second].copy()
    heads[..., first] = a * cos - b * sin
    heads[..., second] = b * cos + a * sin
    return heads.reshape(x.shape)


def _no_cases() -> Iterator[Case]:
    return iter(())  # tested in the cases of attention; runs fused as rope_store


@op(
    rows("x"),
    rows("table"),
    cost=elementwise_cost,
    cases=_no_cases,
    phase=Phase.ATTENTION,
    row_wise=True,
    prepares_heads=True,
    division=lambda node: Division(
        node.outputs[0].cols // int(node.attrs["head_dim"]), whole=frozenset({"table"})
    ),
)
def rope(step: Step, attrs: Attrs, x: FloatArray, table: FloatArray) -> Sequence[FloatArray]:
    """Rotate the first table.cols dimensions of every head."""
    return [rotate(x, table, int(attrs["head_dim"]), bool(attrs["neox"]))]


@op(
    rows("q", in_place=True),
    rows("k", optional=True),
    rows("v", optional=True),
    rows("table", optional=True),
    vector("q_norm", optional=True),
    vector("k_norm", optional=True),
    cache("cache", optional=True, written=True, read=False),
    cost=elementwise_cost,
    cases=_no_cases,
    phase=Phase.ATTENTION,
)
def rope_store(
    step: Step,
    attrs: Attrs,
    q: FloatArray,
    k: FloatArray | None,
    v: FloatArray | None,
    table: FloatArray | None,
    q_norm: FloatArray | None,
    k_norm: FloatArray | None,
    cache: CacheView | None,
) -> Sequence[FloatArray]:
    """Normalise (if weights are given) and rotate the heads of q and k; store k and v."""
    head_dim, eps, neox = int(attrs["head_dim"]), float(attrs["eps"]), bool(attrs["neox"])

    def prepare(x: FloatArray, norm: FloatArray | None) -> FloatArray:
        x = x if norm is None else normalise(x, norm, head_dim, eps)
        return x if table is None else rotate(x, table, head_dim, neox)

    if k is not None:
        assert cache is not None
        if attrs["v_norm"]:
            assert v is not None
            v = normalise(v, None, cache.head_dim_v, eps)
        cache.store(step, prepare(k, k_norm), v)
    return [prepare(q, q_norm)]
