"""Placement of the selection of output rows.

`select_early` moves it forward, so that rows without an output are not computed. `keep_hidden`
moves it back, for a model whose hidden rows of all tokens are wanted.

A model's graph selects output rows before its head. The ops after its last attention are row-wise,
so the selection can move in front of them without changing a logit. For a prompt with one output
row, these ops then run on one row.
"""

from __future__ import annotations

from dataclasses import replace

from zinc.ops.graph import Graph
from zinc.ops.registry import OPS
from zinc.ops.values import Dim, Value

# Most values that are selected: the output of attention and the residual. Each selection is a
# launch, which is of no use while decoding. Values whose rows are not tokens cannot be selected.
MAX_SELECTED = 2


def keep_hidden(graph: Graph, *, raw: bool = False) -> None:
    """Select output rows after the final norm, and keep its rows of all tokens as `graph.hidden`.

    The graph must have one `select_rows` node, which the final norm follows. raw: keep the rows
    before the final norm instead.
    """
    (at,) = (i for i, node in enumerate(graph.nodes) if node.op == "select_rows")
    if raw:
        graph.hidden = graph.nodes[at].rows("x")
        return
    select, norm = graph.nodes[at : at + 2]
    assert OPS[norm.op].row_wise
    assert norm.rows("x") == select.outputs[0]
    x, (selected,) = select.rows("x"), norm.outputs
    graph.hidden = graph.value(x.dim, x.cols)
    graph.nodes[at] = replace(norm.with_input("x", x), outputs=(graph.hidden,))
    graph.nodes[at + 1] = replace(select, inputs=(graph.hidden,), outputs=(selected,))


def select_early(graph: Graph) -> None:
    """Move the selection of output rows as far to the front of `graph` as possible.

    The graph must have one `select_rows` node. It moves over row-wise ops, as long as at most
    MAX_SELECTED values have to be selected.
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
        if len(read) <= MAX_SELECTED and has_rows:
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
    if graph.hidden is not None:
        graph.hidden = moved.get(graph.hidden.id, graph.hidden)
