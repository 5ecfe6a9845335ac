"""The search for the parts of a graph that can be divided over devices (zinc.plan.tensor_split).

A region is a sum over columns with the nodes that make these columns: attention with its output
projection, a feed-forward layer, the experts of a layer. Its nodes have equal parts, such as heads
or columns at the blocks of a quantisation, of which each device gets some.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import field
from math import gcd

from zinc.core.dataclass import dataclass
from zinc.ops.graph import Graph
from zinc.ops.node import Node
from zinc.ops.registry import OPS, Division
from zinc.ops.values import Dim, Input, State, Value, Weight
from zinc.quant.blocks import BLOCKS

# Columns of formats without blocks, and rows of the output, are divided at multiples of this.
ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class Region:
    """Nodes that are divided into `n_parts` equal parts, by their indices in the graph.

    makers: nodes whose output columns are divided. sums: nodes that sum over these columns. states:
    names of the caches and states that are divided. layouts: the sizes of the sections of a value,
    by id, each of which is divided; other values have one.
    """

    n_parts: int
    makers: frozenset[int]
    sums: frozenset[int]
    states: frozenset[str] = frozenset()
    layouts: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    def joined(self, other: Region) -> Region:
        """Return the region with the nodes of both, which must be divided alike."""
        return Region(
            gcd(self.n_parts, other.n_parts),
            self.makers | other.makers,
            self.sums | other.sums,
            self.states | other.states,
            {**self.layouts, **other.layouts},
        )

    def sections(self, node: Node, division: Division, name: str, x: Input) -> tuple[int, ...]:
        """Return the sizes of the sections of the operand `name` of a maker."""
        if name in division.sections:
            return division.sections[name]
        match x:
            case Value():
                return self.layouts.get(x.id, (x.cols,))
            case Weight():
                size = x.cols if x.is_vector else x.rows
                out = node.outputs[0]
                layout = self.layouts.get(out.id)
                return (size,) if layout is None else tuple(n * size // out.cols for n in layout)
            case _:
                return ()


def find_regions(graph: Graph) -> list[Region]:
    """Return the regions of a graph, none of which overlap.

    The output projection comes last, if it can be divided.
    """
    return _Regions(graph).find()


@dataclass(slots=True)
class _Members:
    """The nodes of a region that make the columns of its sum.

    n_parts: parts into which all of them can be divided. whole: values that no member makes, of
    which a device takes some columns.
    """

    n_parts: int = 0
    makers: set[int] = field(default_factory=set)
    states: set[str] = field(default_factory=set)
    whole: list[Value] = field(default_factory=list)

    def add(self, index: int, node: Node, division: Division) -> list[Value]:
        """Add a node; return the values of which its parts need a part."""
        operands = list(_divided(node, division))
        self.makers.add(index)
        self.n_parts = gcd(self.n_parts, division.n_parts)
        self.states |= {x.name for x in operands if isinstance(x, State)}
        return [x for x in operands if isinstance(x, Value)]


class _Regions:
    """The search for the regions of a graph."""

    def __init__(self, graph: Graph) -> None:
        self._nodes, self._output, self._hidden = graph.nodes, graph.output, graph.hidden
        self._makers = {v.id: i for i, node in enumerate(graph.nodes) for v in node.outputs}
        self._users: dict[int | str, set[int]] = defaultdict(set)  # of values and states
        for i, node in enumerate(graph.nodes):
            for x in node.inputs:
                if isinstance(x, Value):
                    self._users[x.id].add(i)
                elif isinstance(x, State):
                    self._users[x.name].add(i)

    def find(self) -> list[Region]:
        """Return the regions, none of which overlap; the output projection comes last, if any."""
        regions: list[Region] = []
        for i, node in enumerate(self._nodes):
            region = self._region(i) if OPS[node.op].sums else None
            if region is None:
                continue
            for other in [x for x in regions if _share(x, region)]:
                regions.remove(other)
                region = region.joined(other)
            regions.append(region)
        found: list[Region] = []
        taken: set[int] = set()
        for region in sorted(regions, key=self._n_elements, reverse=True):
            members = region.makers | region.sums
            if self._is_closed(region) and taken.isdisjoint(members):
                taken |= members
                found.append(region)
        head = self._head()
        return [*found, head] if head is not None and taken.isdisjoint(head.makers) else found

    def _region(self, i: int) -> Region | None:
        """Return the region of the sum `i`; None if no product or attention can be divided."""
        node = self._nodes[i]
        sums = OPS[node.op].sums
        assert sums is not None
        weight = node.weight(sums.matrix)
        if not _has_columns(weight):
            return None
        members = self._members(node.rows(sums.rows))
        if members is None:
            return None
        makers = members.makers
        ops = [OPS[self._nodes[index].op] for index in makers]
        if not any(op.has_matrices or op.reads_cache for op in ops):
            return None
        layouts = self._layouts(makers)
        if any(value.runs > 1 or value.id in layouts for value in members.whole):
            return None  # a device would take columns that are not next to each other
        n_parts = members.n_parts
        size = _columns_together(weight)
        for n in layouts.get(node.rows(sums.rows).id, (weight.cols,)):
            n_parts = gcd(n_parts, n // size if n % size == 0 else 1)
        return Region(
            n_parts, frozenset(makers), frozenset({i}), frozenset(members.states), layouts
        )

    def _members(self, columns: Value) -> _Members | None:
        """Return the nodes that make `columns` and are divided with them; None if one cannot be."""
        found = _Members()
        pending = [columns]
        while pending:
            value = pending.pop()
            at = self._makers.get(value.id)
            division = None if at is None else _division(self._nodes[at])
            if at is None or division is None:
                found.whole.append(value)
                continue
            for index in (at, *self._writers(self._nodes[at], division)):
                if index in found.makers:
                    continue
                part = _division(self._nodes[index])
                if part is None:
                    return None
                pending += found.add(index, self._nodes[index], part)
        return found

    def _layouts(self, makers: set[int]) -> dict[int, tuple[int, ...]]:
        """Return the sizes of the sections of the values of a region that consist of several.

        Ops that say nothing about sections have outputs with those of their operands.
        """
        found: dict[int, tuple[int, ...]] = {}
        n_known = -1
        while n_known < len(found):
            n_known = len(found)
            for i in makers:
                node, division = self._nodes[i], _division(self._nodes[i])
                assert division is not None
                named = [
                    (operand.name, x)
                    for operand, x in OPS[node.op].signature.declared(node.inputs)
                    if isinstance(x, Value) and operand.name not in division.whole
                ] + [("out", x) for x in node.outputs]
                alike = [x for name, x in named if name not in division.sections]
                known = next((found[x.id] for x in alike if x.id in found), None)
                for name, x in named:
                    layout = division.sections.get(name, known)
                    if layout is not None and len(layout) > 1:
                        found[x.id] = layout
        return found

    def _n_elements(self, region: Region) -> int:
        """Return the number of elements of the matrices that a region divides."""
        weights = {
            x.name: x
            for i in region.makers | region.sums
            for x in self._nodes[i].inputs
            if isinstance(x, Weight) and not x.is_vector
        }
        return sum(x.planes * x.rows * x.cols for x in weights.values())

    def _writers(self, node: Node, division: Division) -> Iterator[int]:
        """Yield the nodes that write the states of `node` which are divided with it."""
        for x in _divided(node, division):
            if isinstance(x, State):
                yield from (i for i in self._users[x.name] if OPS[self._nodes[i].op].writes_state)

    def _is_closed(self, region: Region) -> bool:
        """Return whether a region has parts, and no other node reads what they make."""
        made: list[int | str] = [v.id for i in region.makers for v in self._nodes[i].outputs]
        members = region.makers | region.sums
        is_read_inside = all(self._users[x] <= members for x in (*made, *region.states))
        makes_result = any(x is not None and x.id in made for x in (self._output, self._hidden))
        is_apart = region.makers.isdisjoint(region.sums)
        return region.n_parts > 1 and is_read_inside and is_apart and not makes_result

    def _head(self) -> Region | None:
        """Return the output projection, with the element-wise ops after it."""
        assert self._output is not None
        makers: set[int] = set()
        value = self._output
        while value.id in self._makers:
            at = self._makers[value.id]
            node, division = self._nodes[at], _division(self._nodes[at])
            if division is None or (makers and len(self._users[value.id]) > 1):
                return None
            makers.add(at)
            if OPS[node.op].has_matrices:
                n_parts = value.cols // gcd(value.cols, ALIGNMENT)
                is_head = value.dim is Dim.OUTPUTS and n_parts > 1
                return Region(n_parts, frozenset(makers), frozenset()) if is_head else None
            rows = [x for x in _divided(node, division) if isinstance(x, Value)]
            if len(rows) != 1 or not OPS[node.op].elementwise:
                return None
            value = rows[0]
        return None


def _share(a: Region, b: Region) -> bool:
    """Return whether two regions have a node or a state in common, so that they are one."""
    return bool(a.makers & b.makers or a.states & b.states)


def _division(node: Node) -> Division | None:
    """Return how a node can be divided into two or more parts; None if it cannot."""
    division = OPS[node.op].division_of(node)
    if division is None or division.n_parts < 2:
        return None
    matrices = [x for x in node.inputs if isinstance(x, Weight) and not x.is_vector]
    has_rows = division.by_plane or all(x.transposed_rows is None for x in matrices)
    return division if has_rows else None


def _divided(node: Node, division: Division) -> Iterator[Input]:
    """Yield the operands of which a part of `node` needs a part."""
    for operand, x in OPS[node.op].signature.declared(node.inputs):
        if x is not None and operand.name not in division.whole:
            yield x


def _has_columns(weight: Weight) -> bool:
    """Return whether columns of a weight can be read from the file."""
    is_run = weight.rows_from is None or isinstance(weight.rows_from, range)
    return is_run and weight.transposed_rows is None


def _columns_together(weight: Weight) -> int:
    """Return the number of columns that stay together: a block, or ALIGNMENT without blocks."""
    size = BLOCKS[weight.type].block_size
    return size if size > 1 else gcd(weight.cols, ALIGNMENT)
