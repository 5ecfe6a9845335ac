"""Graphs with the matrix products of common models, for `zinc tune` without a model.

The sizes are those of Qwen3 8B and of the experts of Qwen3 30B-A3B, the formats those of Q4_K_M.
"""

from __future__ import annotations

from collections.abc import Iterator

from zinc.ops.graph import Graph
from zinc.ops.moe import SOFTMAX
from zinc.ops.values import ActivationFn, Value, Weight
from zinc.quant.blocks import GGMLType

HIDDEN, FF, KV, VOCABULARY = 4096, 12288, 1024, 151936
EXPERTS, CHOSEN, EXPERT_HIDDEN, EXPERT_FF = 128, 8, 2048, 768
EPS = 1e-6


def common_graphs() -> Iterator[Graph]:
    """Yield a graph for each kind of layer: attention, dense feed-forward, experts, the head."""
    yield from (_attention(), _dense(), _experts(), _head())


def _attention() -> Graph:
    graph, x = _normalised(HIDDEN)
    q, k, v = (
        graph.linear(x, Weight(name, type, (rows, HIDDEN)))
        for name, type, rows in (
            ("q", GGMLType.Q4_K, HIDDEN),
            ("k", GGMLType.Q4_K, KV),
            ("v", GGMLType.Q6_K, KV),
        )
    )
    gated = graph.gate(graph.gate(q, graph.columns(k, 0, 1)), graph.columns(v, 0, 1))
    return _returns(graph, graph.linear(gated, Weight("o", GGMLType.Q4_K, (HIDDEN, HIDDEN))))


def _dense() -> Graph:
    graph, x = _normalised(HIDDEN)
    gate, up = (
        graph.linear(x, Weight(name, GGMLType.Q4_K, (FF, HIDDEN))) for name in ("gate", "up")
    )
    h = graph.glu(gate, up, activation=ActivationFn.SILU)
    first = graph.linear(h, Weight("down", GGMLType.Q4_K, (HIDDEN, FF)))
    second = graph.linear(h, Weight("down6", GGMLType.Q6_K, (HIDDEN, FF)))
    return _returns(graph, graph.gate(first, graph.columns(second, 0, 1)))


def _experts() -> Graph:
    graph, x = _normalised(EXPERT_HIDDEN)
    logits = graph.linear(x, Weight("router", GGMLType.F32, (EXPERTS, EXPERT_HIDDEN)))
    routes = graph.route(logits, None, top_k=CHOSEN, scoring=SOFTMAX, renormalise=True)
    order, starts = graph.group_experts(routes, n_experts=EXPERTS)
    gate, up = (
        Weight(name, GGMLType.Q4_K, (EXPERTS, EXPERT_FF, EXPERT_HIDDEN)) for name in ("gate", "up")
    )
    h = graph.moe_glu(x, order, starts, gate, up, activation=ActivationFn.SILU)
    down = Weight("down", GGMLType.Q6_K, (EXPERTS, EXPERT_HIDDEN, EXPERT_FF))
    return _returns(graph, graph.moe_down(h, order, starts, routes, down))


def _head() -> Graph:
    graph, x = _normalised(HIDDEN)
    rows = graph.select_rows(x)
    graph.output = graph.linear(rows, Weight("head", GGMLType.Q6_K, (VOCABULARY, HIDDEN)))
    return graph


def _normalised(cols: int) -> tuple[Graph, Value]:
    """Return a graph with a normalised row for each token."""
    graph = Graph()
    x = graph.embed(Weight("rows", GGMLType.F32, (2, cols)))
    return graph, graph.rms_norm(x, Weight("norm", GGMLType.F32, (cols,)), eps=EPS)


def _returns(graph: Graph, out: Value) -> Graph:
    graph.output = graph.select_rows(out)
    return graph
