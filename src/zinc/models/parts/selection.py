"""Rows that no output needs are not computed: the selection of output rows moves to the front.

A model file selects them before its head. What comes after the last attention works on each row
for itself, so selecting what that part reads gives the same logits, and a prompt of which one row
is an output goes through it with one row.
"""

from __future__ import annotations

from dataclasses import replace

from zinc.ops.graph import Graph
from zinc.ops.registry import OPS
from zinc.ops.values import Dim, Value

# Values that are selected: what attention made and what it is added to. Each is a launch, which a
# decoded token has for nothing. Slots in order of expert count rows of the step and cannot be.
MOST_SELECTED = 2


def select_early(graph: Graph) -> None:
    """Moves the selection of `graph` as far to the front as row-wise ops and MOST_SELECTED allow.

    The graph selects its output rows once.
    """
    nodes = graph.nodes
    (at,) = (i for i, node in enumerate(nodes) if node.op == "select_rows")
    x, (selected,) = nodes[at].rows("x"), nodes[at].outputs
    read, best = {x.id: x}, (at, {x.id: x})
    for i in reversed(range(at)):
        node = nodes[i]
        if not OPS[node.op].row_wise:
            break
        for made in node.outputs:
            read.pop(made.id, None)
        read |= {v.id: v for v in node.inputs if isinstance(v, Value)}
        has_rows = all(v.dim is Dim.TOKENS for v in read.values())
        if len(read) <= MOST_SELECTED and has_rows:
            best = i, dict(read)
    first, read = best
    graph.nodes, moved = nodes[:first], {}
    graph.at(nodes[first].label)
    for id, value in read.items():
        moved[id] = graph.select_rows(value)
    for node in nodes[first:at]:
        for value in node.outputs:
            if value.dim is Dim.TOKENS:
                moved[value.id] = replace(value, dim=Dim.OUTPUTS)
    moved[selected.id] = moved[x.id]
    for node in (*nodes[first:at], *nodes[at + 1 :]):
        inputs = tuple(moved.get(v.id, v) if isinstance(v, Value) else v for v in node.inputs)
        outputs = tuple(moved.get(v.id, v) for v in node.outputs)
        graph.nodes.append(replace(node, inputs=inputs, outputs=outputs))
    if graph.output is not None:
        graph.output = moved.get(graph.output.id, graph.output)
