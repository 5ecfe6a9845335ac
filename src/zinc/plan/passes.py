"""Rewrites of a graph before memory is assigned: fusions of linear layers, and views of columns.

A pass maps a list of nodes to a list of nodes that computes the same values. `ref` runs both, and a
test compares them. A pass looks at structure only, never at the name of a model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TypeAlias

from zinc.core.dataclass import dataclass
from zinc.ops.node import Node
from zinc.ops.registry import OPS
from zinc.ops.values import Dim, RowFormat, Value, Weight
from zinc.plan.split import TRANSFERS

RowFormatOf: TypeAlias = Callable[[Weight], RowFormat]

MAX_PARTS = 4


def uses(nodes: Iterable[Node], output: Value | None) -> Counter[int]:
    """Return how often each value is read. The output of the graph counts as a read."""
    counts = Counter(v.id for node in nodes for v in node.inputs if isinstance(v, Value))
    if output is not None:
        counts[output.id] += 1
    return counts


def producers(nodes: Iterable[Node]) -> dict[int, Node]:
    """Return the node that makes each value, by id."""
    return {v.id: node for node in nodes for v in node.outputs}


def fuse_residual(nodes: Sequence[Node], output: Value | None) -> list[Node]:
    """Fuse add(linear(x), r), add(rms_norm(x), r) and similar into one node with residual r."""
    made, used = producers(nodes), uses(nodes, output)
    order = {id(node): i for i, node in enumerate(nodes)}
    absorbed: dict[int, Node] = {}  # the replacement of each node, by id(node)
    dropped: set[int] = set()
    for node in nodes:
        if node.op != "add":
            continue
        a, b = node.rows("a"), node.rows("b")
        for branch, residual in ((a, b), (b, a)):
            source = made.get(branch.id)
            if source is None or used[branch.id] != 1 or id(source) in dropped:
                continue
            if not _may_take_residual(source):
                continue
            before = made.get(residual.id)
            if before is not None and order[id(before)] > order[id(source)]:
                continue  # the residual is computed after the branch
            taking = source.with_input("residual", residual)
            absorbed[id(source)] = replace(taking, outputs=node.outputs)
            dropped.add(id(node))
            break
    return [absorbed.get(id(node), node) for node in nodes if id(node) not in dropped]


def _may_take_residual(node: Node) -> bool:
    """Return whether a residual can be added to the one output of `node`."""
    operand = None if node.op in TRANSFERS else OPS[node.op].signature.residual
    return operand is not None and len(node.outputs) == 1 and node.input(operand.name) is None


def fuse_glu(
    nodes: Sequence[Node],
    output: Value | None,
    row_format: RowFormatOf,
    apart: Container[str] = (),
) -> list[Node]:
    """Fuse glu(linear(x, gate), linear(x, up)) into one product with both weights.

    apart: tensors whose products stay as they are.
    """
    made, used = producers(nodes), uses(nodes, output)
    result: list[Node] = []
    dropped: set[int] = set()
    for node in nodes:
        if node.op == "glu" and node.input("up") is not None:
            gate, up = made[node.rows("gate").id], made[node.rows("up").id]
            is_last_use = all(used[value.id] == 1 for value in (*gate.outputs, *up.outputs))
            if is_last_use and _are_gated_product(gate, up, row_format, apart):
                dropped |= {id(gate), id(up)}
                weights = gate.weight("weight"), up.weight("weight")
                inputs = (gate.rows("x"), *weights, gate.input("bias"), up.input("bias"))
                node = replace(node, op="linear_glu", inputs=inputs)
        result.append(node)
    return [node for node in result if id(node) not in dropped]


def _are_gated_product(
    gate: Node, up: Node, row_format: RowFormatOf, apart: Container[str]
) -> bool:
    """Return whether one kernel can compute the products `gate` and `up` of the same rows."""
    if any(part.op != "linear" or not _may_take_residual(part) for part in (gate, up)):
        return False
    weights = gate.weight("weight"), up.weight("weight")
    if gate.rows("x") != up.rows("x") or any(weight.tensor in apart for weight in weights):
        return False
    return row_format(weights[0]) == row_format(weights[1])


def fuse_siblings(
    nodes: Sequence[Node], output: Value | None, row_format: RowFormatOf
) -> list[Node]:
    """Merge linears that read the same rows in the same format into one node of several parts."""
    result: list[Node] = []
    open_groups: dict[tuple[int, RowFormat], int] = {}
    for node in nodes:
        if node.op != "linear" or not _may_take_residual(node):
            result.append(node)
            continue
        key = (node.rows("x").id, row_format(node.weight("weight")))
        at = open_groups.get(key)
        if at is None or len(result[at].outputs) == MAX_PARTS:
            open_groups[key] = len(result)
            result.append(node)
            continue
        head = result[at]
        result[at] = replace(
            head,
            inputs=(*head.inputs, *node.inputs[OPS[node.op].signature.n_single :]),
            outputs=(*head.outputs, *node.outputs),
            attrs=MappingProxyType({"n_parts": len(head.outputs) + 1}),
        )
    return result


@dataclass(frozen=True, slots=True)
class View:
    """Columns of the value `base`, starting at `first`. A view has no memory of its own."""

    base: Value
    first: int


def resolve_views(nodes: Sequence[Node]) -> tuple[list[Node], dict[int, View]]:
    """Drop `columns` nodes and return a view for each value that they made, by id."""
    result: list[Node] = []
    views: dict[int, View] = {}
    for node in nodes:
        if node.op != "columns":
            result.append(node)
            continue
        base, (out,) = node.rows("x"), node.outputs
        assert base.format is out.format is RowFormat.F32, "only float32 columns have addresses"
        first = int(node.attrs["first"])
        if base.id in views:
            base, first = views[base.id].base, first + views[base.id].first
        views[out.id] = View(base, first)
    return result, views


def check(nodes: Sequence[Node], output: Value | None) -> None:
    """Raise AssertionError unless nodes have the operands of their ops and read what was made.

    Every value must be made once, before it is read, and the output must have the rows of outputs.
    """
    made: dict[int, Value] = {}
    for node in nodes:
        if node.op not in TRANSFERS:
            node.check()
        for value in node.inputs:
            if isinstance(value, Value):
                assert made.get(value.id) == value, f"{node.op} reads {value} before it is made"
        for value in node.outputs:
            assert value.id not in made, f"{value} is made twice"
            made[value.id] = value
    if output is None:
        return
    assert made.get(output.id) == output, "the output is not made"
    assert output.dim is Dim.OUTPUTS, "the output must have a row for each output row of the step"
