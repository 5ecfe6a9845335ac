"""LoRA adapters as nodes after the products whose weights they change.

The weights themselves do not change. A `lora` node adds the adapter's term to the result of a
product, for the rows of the sequences that use the adapter (`zinc.ops.lora`). An adapter of an
embedding table (of tokens or token types) becomes a look-up in its own table and such a node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType
from typing import TypeAlias

from zinc.core.dataclass import dataclass
from zinc.ops.node import Node
from zinc.ops.registry import OPS
from zinc.ops.values import Dim, Value, Weight
from zinc.plan.weights import matrix_part
from zinc.quant.blocks import GGMLType

EMBEDDING = "token_embd.weight"
TYPES = "token_types.weight"  # of the tokens of an encoder
TABLES = (EMBEDDING, TYPES)


@dataclass(frozen=True, slots=True)
class Factors:
    """The factors of an adapter for one tensor.

    A matrix [out, cols] changes by b @ a, with a [rank, cols] and b [out, rank]. An embedding table
    [tokens, hidden] changes by a @ b.T, with a [tokens, rank] and b [hidden, rank].
    """

    a: Weight
    b: Weight

    @classmethod
    def of(cls, name: str, a: Sequence[int], b: Sequence[int]) -> Factors:
        """Return factors of these shapes, which are stored as float16."""
        factors = (Weight(f"{name}.{x}", GGMLType.F16, tuple(y)) for x, y in (("a", a), ("b", b)))
        return cls(*factors)


# The factors of each loaded adapter, by the name of the tensor that they change.
Adapters: TypeAlias = Sequence[Mapping[str, Factors]]


def changeable(nodes: Iterable[Node]) -> set[str]:
    """Return the names of the tensors that only products and embedding look-ups of `nodes` read."""
    found: set[str] = set()
    others: set[str] = set()
    for node in nodes:
        for x in node.inputs:
            if isinstance(x, Weight) and not x.is_vector:
                is_product = node.op == "linear" and x.transposed_rows is None and x.planes == 1
                is_lookup = node.op == "embed" and (
                    not node.attrs.get("by_position") or x.tensor == TYPES
                )
                (found if is_product or is_lookup else others).add(x.tensor)
    return found - others


def targets(adapters: Adapters) -> frozenset[str]:
    """Return the tensors that any of `adapters` changes, without the token embedding."""
    return frozenset(name for each in adapters for name in each) - {EMBEDDING}


def add_adapters(nodes: Sequence[Node], adapters: Adapters, ids: Iterator[int]) -> list[Node]:
    """Return `nodes` with the nodes of adapters after products. New values get ids from `ids`."""
    result: list[Node] = []
    for node in nodes:
        if node.op == "linear":
            result += _product(node, adapters, ids)
        elif node.op == "embed" and node.weight("table").tensor in TABLES:
            result += _lookup(node, adapters, ids)
        else:
            result.append(node)
    return result


def _product(node: Node, adapters: Adapters, ids: Iterator[int]) -> Iterator[Node]:
    """Yield a product, and a node for each adapter that changes any of its weights."""
    n_parts = OPS[node.op].signature.n_parts(node.inputs)
    weights = [node.weight("weight", part) for part in range(n_parts)]
    uses = [
        (i, part, own[weight.tensor])
        for i, own in enumerate(adapters)
        for part, weight in enumerate(weights)
        if weight.tensor in own and weight.tensor != EMBEDDING
    ]
    # Each part is changed in turn; the last change makes the value that other nodes read.
    versions = [
        [*(replace(out, id=next(ids)) for _, part, _ in uses if part == i), out]
        for i, out in enumerate(node.outputs)
    ]
    steps = [pairwise(each) for each in versions]
    yield replace(node, outputs=tuple(each[0] for each in versions))
    for i in dict.fromkeys(adapter for adapter, _, _ in uses):
        inputs: list[Value | Weight | None] = [node.rows("x")]
        outputs = []
        for adapter, part, factors in uses:
            if adapter == i:
                before, after = next(steps[part])
                a, b = _columns_of(factors.a, weights[part]), _rows_of(factors.b, weights[part])
                inputs += [before, a, b]
                outputs.append(after)
        yield _node(i, tuple(inputs), outputs, node)


def _lookup(node: Node, adapters: Adapters, ids: Iterator[int]) -> Iterator[Node]:
    """Yield a look-up in a table, and the nodes of adapters that change it."""
    table = node.weight("table")
    uses = [(i, own[table.tensor]) for i, own in enumerate(adapters) if table.tensor in own]
    (out,) = node.outputs
    versions = [*(replace(out, id=next(ids)) for _ in uses), out]
    yield replace(node, outputs=(versions[0],))
    for (i, factors), (before, after) in zip(uses, pairwise(versions), strict=True):
        shrunk = Value(next(ids), out.dim, factors.a.cols)
        yield replace(node, inputs=(_rows_of(factors.a, table),), outputs=(shrunk,))
        yield _node(i, (shrunk, before, None, factors.b), [after], node)


def _node(
    adapter: int, inputs: tuple[Value | Weight | None, ...], outputs: Sequence[Value], beside: Node
) -> Node:
    attrs = {"adapter": adapter, "of_outputs": int(outputs[0].dim is Dim.OUTPUTS)}
    return Node("lora", inputs, tuple(outputs), MappingProxyType(attrs), beside.label)


def _rows_of(b: Weight, weight: Weight) -> Weight:
    """Return the rows of `b` that belong to `weight`, which may be a part of its tensor."""
    if weight.box is not None:
        return matrix_part(b, range(1), weight.box.rows, [range(b.cols)])
    if weight.rows_from is None:
        return b
    part = weight.name.removeprefix(weight.tensor)
    return replace(b, name=f"{b.name}{part}", rows_from=weight.rows_from, source=b.tensor)


def _columns_of(a: Weight, weight: Weight) -> Weight:
    """Return the columns of `a` that belong to `weight`, which may be a part of its tensor."""
    if weight.box is None:
        return a
    return matrix_part(a, range(1), range(a.rows), weight.box.cols)
