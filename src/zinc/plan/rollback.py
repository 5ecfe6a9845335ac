"""The graph of a model whose sequences can be rolled back, for speculative decoding.

Keys and values of later positions are overwritten, so attention needs no change. Ops with recurrent
state get the attribute `rollback` and a larger state (zinc.ops.recurrent_state). The modules of
zinc.models need no code for this.
"""

from __future__ import annotations

from zinc.ops.graph import Graph
from zinc.ops.node import Node
from zinc.ops.recurrent_state import CHUNK
from zinc.ops.registry import OPS


def rollback_graph(graph: Graph, rows: int = CHUNK) -> Graph:
    """Return `graph` with recurrent states that can be rolled back by up to `rows` rows.

    rows: from 1 to CHUNK. The states take about twice the memory, and more with more rows.
    """
    found = Graph()
    found.nodes = [_with_rollback(node, rows) for node in graph.nodes]
    found.output, found.hidden = graph.output, graph.hidden
    return found


def _with_rollback(node: Node, rows: int) -> Node:
    rollback = OPS[node.op].rollback
    return node if rollback is None else rollback(node, rows)
