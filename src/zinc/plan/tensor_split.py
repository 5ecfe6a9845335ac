"""Tensor parallelism: division of a model's matrices over devices that run at the same time.

A sum over columns, such as the output projection of attention or the down projection of a
feed-forward layer, is divided together with the nodes that make these columns: each device has some
heads or some columns of the layer, with their weights, keys and values. The partial sums are added
by an `all_reduce`, after which every device has the result.

    x ──┬── gate, up (rows of device 0) ── glu ── down (columns of device 0) ──┬── all_reduce ── y
        └── gate, up (rows of device 1) ── glu ── down (columns of device 1) ──┘

Nodes that cannot be divided run on every device, so their results need not be sent. Table look-ups
run on the first device, which also receives the hidden rows of a NextN block from the host. The
rows of the output projection are divided too, and the first device joins the logits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate, count, pairwise
from types import MappingProxyType

from zinc.core.dataclass import dataclass
from zinc.ops.graph import Graph
from zinc.ops.node import Node
from zinc.ops.registry import OPS, Division
from zinc.ops.values import (
    AttrValue,
    Input,
    KVState,
    RecurrentState,
    State,
    Value,
    Weight,
)
from zinc.plan.split import ALL_REDUCE
from zinc.plan.tensor_regions import Region, find_regions
from zinc.plan.weights import matrix_part, ranges_text


@dataclass(frozen=True, slots=True)
class DividedGraph:
    """Nodes, the device of each, and the output and hidden rows, which the first device makes."""

    nodes: tuple[Node, ...]
    devices: tuple[int, ...]
    output: Value
    hidden: Value | None


def divide(graph: Graph, shares: Sequence[float], alike: bool = True) -> DividedGraph:
    """Return `graph` divided over one device for each of `shares`, in this proportion.

    alike: the devices compute the same bits, so that each may choose the experts of a token.
    """
    return _Divider(graph, find_regions(graph), shares, alike).divide()


@dataclass(frozen=True, eq=False)
class _Cut:
    """The parts of a region that each device has."""

    region: Region
    bounds: tuple[int, ...]

    @cached_property
    def devices(self) -> list[int]:
        """The devices that have any part."""
        return [i for i, (first, last) in enumerate(pairwise(self.bounds)) if first < last]

    def range_of(self, device: int, size: int) -> range:
        """Return the part of `size` columns, rows or heads that a device has."""
        each = size // self.region.n_parts
        return range(self.bounds[device] * each, self.bounds[device + 1] * each)

    def ranges(self, device: int, sections: Sequence[int]) -> list[range]:
        """Return the parts of sections of these sizes that a device has."""
        found = []
        for first, size in zip(accumulate(sections, initial=0), sections, strict=False):
            part = self.range_of(device, size)
            found.append(range(first + part.start, first + part.stop))
        return found


# A value on each device; None where it is not.
_Copies = list[Value | None]


class _Divider:
    """The nodes of all devices, made from those of a graph in order.

    A value of the graph is whole on every device (or on the first one alone), divided by columns,
    or a sum of partial sums. A sum is added up before a node needs it whole.
    """

    def __init__(
        self, graph: Graph, regions: Sequence[Region], shares: Sequence[float], alike: bool
    ) -> None:
        self._graph, self._alike, self._n_devices = graph, alike, len(shares)
        self._nodes: list[Node] = []
        self._devices: list[int] = []
        self._cuts: dict[int, _Cut] = {}  # by index of the node
        total = sum(shares)
        for region in regions:
            ends = [round(region.n_parts * each / total) for each in accumulate(shares)]
            cut = _Cut(region, (0, *ends[:-1], region.n_parts))
            self._cuts |= dict.fromkeys(region.makers | region.sums, cut)
        self._n_uses: dict[int, int] = defaultdict(int)
        for node in graph.nodes:
            for x in node.inputs:
                if isinstance(x, Value):
                    self._n_uses[x.id] += 1
        self._whole: dict[int, _Copies] = {}
        if graph.given is not None:
            self._whole[graph.given.id] = [graph.given] * self._n_devices
        if graph.hidden is not None:
            self._n_uses[graph.hidden.id] += 1
        self._parts: dict[int, tuple[_Cut, _Copies]] = {}
        self._sums: dict[int, tuple[_Copies, str]] = {}
        self._views: dict[tuple[int, int, _Cut], Value] = {}
        self._ids = count(1 + max(v.id for node in graph.nodes for v in node.outputs))
        self._n_reduced = 0

    def divide(self) -> DividedGraph:
        """Return the divided graph."""
        for i, node in enumerate(self._graph.nodes):
            cut = self._cuts.get(i)
            if cut is None:
                if not self._add_sum(node):
                    self._add_whole(node)
            elif i in cut.region.sums:
                self._add_partial(node, cut)
            else:
                self._add_part(node, cut)
        assert self._graph.output is not None
        output, hidden = self._output(self._graph.output), self._graph.hidden
        results = [output]
        if hidden is not None:
            hidden = self._output(hidden)
            results.append(hidden)
        kept = list(_needed(self._nodes, results))
        nodes = tuple(self._nodes[i] for i in kept)
        return DividedGraph(nodes, tuple(self._devices[i] for i in kept), output, hidden)

    def _add(self, device: int, node: Node) -> None:
        self._nodes.append(node)
        self._devices.append(device)

    def _copy(self, value: Value, cols: int | None = None) -> Value:
        """Return a new value in place of `value` on a device."""
        return replace(value, id=next(self._ids), cols=value.cols if cols is None else cols)

    def _add_whole(self, node: Node) -> None:
        """Add a node to every device, or to the first one if its result is to be sent."""
        op, rows = OPS[node.op], [x for x in node.inputs if isinstance(x, Value)]
        copies = [self._all(x) for x in rows]
        is_first_only = any(None in each for each in copies)
        reads_table = not rows and any(
            isinstance(x, Weight) and not x.is_vector for x in node.inputs
        )
        is_sent = reads_table or (op.discrete and not self._alike)
        made: list[tuple[Value, ...]] = []
        for device in range(1 if is_first_only or is_sent else self._n_devices):
            inputs = tuple(self._operand(x, device) for x in node.inputs)
            outputs = tuple(self._copy(v) for v in node.outputs)
            self._add(device, replace(node, inputs=inputs, outputs=outputs))
            made.append(outputs)
        for i, value in enumerate(node.outputs):
            each: _Copies = [outputs[i] for outputs in made]
            missing = self._n_devices - len(each)
            self._whole[value.id] = each + [each[0] if not is_first_only else None] * missing

    def _operand(self, x: Input, device: int) -> Input:
        """Return an operand of a node that is whole on `device`."""
        if isinstance(x, Value):
            return self._all(x)[device]
        if isinstance(x, KVState | RecurrentState):
            return replace(x, name=_name(x, device))
        return x

    def _all(self, value: Value) -> _Copies:
        """Return the copies of a whole value; partial sums are added up first."""
        if value.id not in self._whole:
            partial, label = self._sums[value.id]
            totals = [self._copy(value) for _ in partial]
            attrs = MappingProxyType({"stop": self._n_reduced})
            self._n_reduced += 1
            for device, (part, total) in enumerate(zip(partial, totals, strict=True)):
                inputs = () if part is None else (part,)
                self._add(device, Node(ALL_REDUCE, inputs, (total,), attrs, label))
            self._whole[value.id] = list(totals)
        return self._whole[value.id]

    def _add_part(self, node: Node, cut: _Cut) -> None:
        """Add the parts of a node whose output columns are divided."""
        division = OPS[node.op].division_of(node)
        assert division is not None
        made: list[_Copies] = [[None] * self._n_devices for _ in node.outputs]
        for device in cut.devices:
            inputs = tuple(
                self._operand(x, device)
                if operand.name in division.whole
                else self._cut(
                    x, device, cut, cut.region.sections(node, division, operand.name, x), division
                )
                for operand, x in OPS[node.op].signature.declared(node.inputs)
            )
            outputs = tuple(self._copy(v, len(cut.range_of(device, v.cols))) for v in node.outputs)
            attrs: dict[str, AttrValue] = dict(node.attrs)
            for name in division.counts:
                attrs[name] = len(cut.range_of(device, int(attrs[name])))
            part = replace(node, inputs=inputs, outputs=outputs, attrs=MappingProxyType(attrs))
            self._add(device, part)
            for copies, value in zip(made, outputs, strict=True):
                copies[device] = value
        for value, copies in zip(node.outputs, made, strict=True):
            self._parts[value.id] = cut, copies

    def _add_partial(self, node: Node, cut: _Cut) -> None:
        """Add a node to each device that has columns, which computes a partial sum.

        Operands that are added once, such as a bias, are operands of the first partial sum only.
        """
        partial: _Copies = [None] * self._n_devices
        for device in cut.devices:
            inputs = tuple(
                self._operand_of_partial(node, operand.name, x, device, cut)
                for operand, x in OPS[node.op].signature.declared(node.inputs)
            )
            outputs = tuple(self._copy(v) for v in node.outputs)
            self._add(device, replace(node, inputs=inputs, outputs=outputs))
            (partial[device],) = outputs
        self._sums[node.outputs[0].id] = partial, node.label

    def _operand_of_partial(self, node: Node, name: str, x: Input, device: int, cut: _Cut) -> Input:
        """Return the operand `name` of the partial sum of `node` on a device, in place of `x`."""
        sums = OPS[node.op].sums
        assert sums is not None
        if name == sums.rows:
            assert isinstance(x, Value)
            return self._columns(x, device, cut)
        if name == sums.matrix:
            assert isinstance(x, Weight)
            sections = cut.region.layouts.get(node.rows(sums.rows).id, (x.cols,))
            cols = cut.ranges(device, sections)
            return matrix_part(x, range(x.planes), range(x.rows), cols)
        if name in sums.once and device != cut.devices[0]:
            return None
        return self._operand(x, device)

    def _add_sum(self, node: Node) -> bool:
        """Add a node to partial sums that only it reads, so that they are added up after it.

        Returns False if there are none. Other operands are added to the first partial sum.
        """
        rows = [x for x in node.inputs if isinstance(x, Value)]
        terms = [x for x in rows if x.id in self._sums and x.id not in self._whole]
        is_sum = OPS[node.op].additive and len(rows) == len(node.inputs)
        if not terms or not is_sum or any(self._n_uses[x.id] > 1 for x in terms):
            return False
        sums = [self._sums[x.id][0] for x in terms]
        first = next(d for d in range(self._n_devices) if any(each[d] for each in sums))
        partial: _Copies = []
        for device in range(self._n_devices):
            inputs = [
                self._sums[x.id][0][device]
                if x in terms
                else (self._all(x)[device] if device == first else None)
                for x in rows
            ]
            present = [x for x in inputs if x is not None]
            if len(present) == len(rows):
                out = self._copy(node.outputs[0])
                self._add(device, replace(node, inputs=tuple(inputs), outputs=(out,)))
                partial.append(out)
            else:
                partial.append(present[0] if present else None)
        self._sums[node.outputs[0].id] = partial, node.label
        return True

    def _cut(
        self, x: Input, device: int, cut: _Cut, sections: Sequence[int], division: Division
    ) -> Input:
        """Return the part of an operand with these sections that a device needs."""
        match x:
            case Value():
                return self._columns(x, device, cut)
            case KVState():
                n_heads = len(cut.range_of(device, x.n_heads))
                return replace(x, name=_name(x, device), n_heads=n_heads)
            case RecurrentState():
                n_floats = len(cut.range_of(device, x.floats))
                return replace(x, name=_name(x, device), floats=n_floats)
            case Weight() if x.is_vector:
                return _elements(x, cut.ranges(device, sections))
            case Weight() if division.by_plane:
                return _planes(x, cut.range_of(device, x.planes))
            case Weight():
                return _rows(x, cut.ranges(device, sections))
            case _:
                return x

    def _columns(self, value: Value, device: int, cut: _Cut) -> Value:
        """Return the columns of a value that a device needs: its part, or a view of the whole."""
        if value.id in self._parts:
            _, copies = self._parts[value.id]
            found = copies[device]
            assert found is not None
            return found
        key = value.id, device, cut
        if key not in self._views:
            whole, part = self._all(value)[device], cut.range_of(device, value.cols)
            view = self._copy(value, len(part))
            attrs = MappingProxyType({"first": part.start, "width": len(part)})
            self._add(device, Node("columns", (whole,), (view,), attrs))
            self._views[key] = view
        return self._views[key]

    def _output(self, value: Value) -> Value:
        """Return a result on the first device, which joins its parts if it is divided."""
        if value.id not in self._parts:
            found = self._all(value)[0]
            assert found is not None
            return found
        _, copies = self._parts[value.id]
        joined, *others = [x for x in copies if x is not None]
        for part in others:
            both = self._copy(value, joined.cols + part.cols)
            attrs = MappingProxyType({"n_heads": 1})
            self._add(0, Node("concat_heads", (joined, part), (both,), attrs, "head"))
            joined = both
        return joined


def _name(state: State, device: int) -> str:
    return f"{state.name}/{device}"


def _needed(nodes: Sequence[Node], results: Iterable[Value]) -> Iterator[int]:
    """Yield the indices of the nodes that the results depend on, in order."""
    wanted: set[int | str] = {value.id for value in results}
    kept = []
    for i in reversed(range(len(nodes))):
        node = nodes[i]
        states = {x.name for x in node.inputs if isinstance(x, State)}
        stores = states if not node.outputs else set[str]()
        if node.op == ALL_REDUCE or stores & wanted or any(v.id in wanted for v in node.outputs):
            wanted |= {v.id for v in node.inputs if isinstance(v, Value)} | states
            kept.append(i)
    yield from reversed(kept)


def _elements(vector: Weight, parts: Sequence[range]) -> Weight:
    """Return some elements of a vector."""
    source = range(vector.cols) if vector.rows_from is None else vector.rows_from
    elements = [source[i] for part in parts for i in part]
    return replace(
        vector,
        name=f"{vector.name}[{ranges_text(parts)}]",
        shape=(len(elements),),
        rows_from=tuple(elements),
        source=vector.tensor,
    )


def _planes(weight: Weight, part: range) -> Weight:
    """Return some planes of a matrix."""
    if weight.transposed_rows is None:
        return matrix_part(weight, part, range(weight.rows), [range(weight.cols)])
    cols = weight.cols
    return replace(
        weight,
        name=f"{weight.name}[{part.start}:{part.stop}]",
        shape=(len(part), *weight.shape[1:]),
        transposed_rows=weight.transposed_rows[part.start * cols : part.stop * cols],
    )


def _rows(weight: Weight, parts: Sequence[range]) -> Weight:
    """Return some rows of each plane of a matrix."""
    source = range(weight.rows) if weight.rows_from is None else weight.rows_from
    if isinstance(source, range) and len(parts) == 1:
        return matrix_part(weight, range(weight.planes), parts[0], [range(weight.cols)])
    return replace(
        weight,
        name=f"{weight.name}[{ranges_text(parts)}]",
        rows_from=tuple(source[i] for part in parts for i in part),
        source=weight.tensor,
    )
