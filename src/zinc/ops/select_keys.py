"""The lightning indexer: which cached positions each token attends to (DeepSeek-AI 2025, V3.2).

A token has several small index queries with a weight each, and every position one index key, in a
cache of its own. The index score of a position s for a token t is

    score(t, s) = sum over h of w[t, h] * relu(q[t, h] . k[s])

and attention is over the `top_k` positions with the largest scores. A token that sees no more than
`top_k` positions attends to all of them, so up to this length attention is dense.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from zinc.ops.attention import CacheView
from zinc.ops.cases import Case
from zinc.ops.costs import elementwise_cost
from zinc.ops.node import Node
from zinc.ops.operands import cache, rows
from zinc.ops.registry import Attrs, Cost, Phase, op
from zinc.ops.step import Step
from zinc.ops.values import FloatArray, KVState

NO_KEY = -1.0


def _cost(node: Node) -> Cost:
    """Return the cost of the scores of all positions that a step sees."""
    state = node.input("cache")
    assert isinstance(state, KVState)
    q = node.rows("q")
    return Cost(
        row_bytes=elementwise_cost(node).row_bytes,
        key_bytes=2 * state.head_dim,
        pair_flops=2 * q.cols,
    )


def _cases() -> Iterator[Case]:
    shapes = [
        (Case("few", 13, sequences=(9, 1, 3)), 4, 32, 8),
        (Case("many", 70, sequences=(40, 1, 29)), 8, 64, 16),
        (Case("deep", 3, sequences=(1, 2), cached=300), 7, 128, 100),
        (Case("deep-one", 1, cached=700), 64, 64, 300),
        (Case("dense", 9, cached=20), 4, 32, 64),
    ]
    for case, n_heads, head_dim, top_k in shapes:
        yield case.returns(case.selection(n_heads, head_dim, top_k))


@op(
    rows("q"),
    rows("weights"),
    cache("cache"),
    cost=_cost,
    cases=_cases,
    phase=Phase.ATTENTION,
    discrete=True,
    optional=True,
)
def select_keys(
    step: Step, attrs: Attrs, q: FloatArray, weights: FloatArray, cache: CacheView
) -> Sequence[FloatArray]:
    """Return the positions [tokens, top_k] that each token attends to, in ascending order.

    Rows of q are [heads * head_dim], rows of weights [heads]. Of equal scores the first position
    wins. A token that sees fewer positions has all of them, and then -1 for each that is missing.
    """
    top_k, n_heads = int(attrs["top_k"]), weights.shape[1]
    out = np.full((len(q), top_k), NO_KEY, np.float32)
    for s in range(step.n_sequences):
        for row in range(step.seq_start[s], step.seq_start[s + 1]):
            visible = np.arange(step.positions[row] + 1, dtype=np.int32)
            if len(visible) > top_k:
                keys = cache.k[cache.slots(step, s, visible)][:, 0]
                dots = np.maximum(keys @ q[row].reshape(n_heads, -1).T, 0)
                best = np.argsort(-(dots @ weights[row]), kind="stable")
                visible = np.sort(best[:top_k])
            out[row, : len(visible)] = visible
    return [out]
