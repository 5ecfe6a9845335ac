"""The graph of a model without its output projection, which ends at the final norm.

Every decoder ends with a selection of rows, a norm, a linear into the vocabulary and perhaps
element-wise ops on the logits. So the projection is found from the end of the graph, whatever the
model file, and the rest is planned and run like any other graph.
"""

from __future__ import annotations

from zinc.core.errors import UnsupportedError
from zinc.ops.graph import Graph
from zinc.ops.node import Node
from zinc.ops.registry import OPS
from zinc.ops.values import Value
from zinc.plan.passes import producers


def hidden_graph(graph: Graph) -> Graph:
    """Return a graph whose output is the rows [outputs, hidden] that `graph` projects into logits.

    Raises UnsupportedError if the graph does not end in a projection.
    """
    assert graph.output is not None
    made = producers(graph.nodes)
    node = made[graph.output.id]
    after: list[Node] = [node]
    while OPS[node.op].elementwise and isinstance(node.inputs[0], Value):
        node = made[node.inputs[0].id]
        after.append(node)
    if node.op != "linear":
        raise UnsupportedError(
            "this model has no hidden states to give",
            f"its graph ends in {node.op} and not in a projection into the vocabulary",
        )
    dropped = {id(n) for n in after}
    found = Graph()
    found.nodes = [n for n in graph.nodes if id(n) not in dropped]
    found.output = node.rows("x")
    return found
