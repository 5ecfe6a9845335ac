"""Division of a model's tensors over several devices that run at the same time.

A sum over columns, such as the output projection of attention or the down projection of a
feed-forward layer, is divided together with the nodes that make these columns: each device has some
heads or some columns of the layer, with their weights, keys and values. The partial sums are added
by an `all_reduce`, after which every device has the result.

    x ──┬── gate, up (rows of device 0) ── glu ── down (columns of device 0) ──┬── all_reduce ── y
        └── gate, up (rows of device 1) ── glu ── down (columns of device 1) ──┘

What cannot be divided runs on every device, so that its results need not be sent. Table look-ups
run on the first device. The rows of the output projection are divided too, and the first device
joins the logits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, count, pairwise
from math import gcd
from types import MappingProxyType

from zinc.ops.graph import Graph, Node
from zinc.ops.registry import OPS, Division
from zinc.ops.values import (
    AttrValue,
    Dim,
    Input,
    KVState,
    RecurrentState,
    State,
    Value,
    Weight,
)
from zinc.plan.split import ALL_REDUCE
from zinc.plan.weights import matrix_part, ranges_text
from zinc.quant.blocks import BLOCKS

# Columns of formats without blocks, and rows of the output, are divided at multiples of this.
ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class DividedGraph:
    """Nodes, the device of each, and the output, which the first device makes."""

    nodes: tuple[Node, ...]
    devices: tuple[int, ...]
    output: Value


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


def divide(graph: Graph, shares: Sequence[float], alike: bool = True) -> DividedGraph:
    """Return `graph` divided over one device for each of `shares`, in this proportion.

    alike: the devices compute the same bits, so that each may choose the experts of a token.
    """
    found = _Regions(graph).find()
    return _Divider(graph, found, shares, alike).divide()


class _Regions:
    """The search for the regions of a graph."""

    def __init__(self, graph: Graph) -> None:
        self._nodes, self._output = graph.nodes, graph.output
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
        n_parts = 0
        makers: set[int] = set()
        states: set[str] = set()
        pending = [node.rows(sums.rows)]
        whole: list[Value] = []  # values of which a device takes some columns
        while pending:
            value = pending.pop()
            at = self._makers.get(value.id)
            division = None if at is None else _division(self._nodes[at])
            if at is None or division is None:
                whole.append(value)
                continue
            for index in (at, *self._writers(self._nodes[at], division)):
                if index in makers:
                    continue
                member = self._nodes[index]
                part = _division(member)
                if part is None:
                    return None
                makers.add(index)
                n_parts = gcd(n_parts, part.n_parts)
                for x in _divided(member, part):
                    if isinstance(x, Value):
                        pending.append(x)
                    elif isinstance(x, State):
                        states.add(x.name)
        ops = [OPS[self._nodes[index].op] for index in makers]
        if not any(op.has_matrices or op.reads_cache for op in ops):
            return None
        layouts = self._layouts(makers)
        if any(value.runs > 1 or value.id in layouts for value in whole):
            return None  # a device would take columns that are not next to each other
        size = _columns_together(weight)
        for n in layouts.get(node.rows(sums.rows).id, (weight.cols,)):
            n_parts = gcd(n_parts, n // size if n % size == 0 else 1)
        return Region(n_parts, frozenset(makers), frozenset({i}), frozenset(states), layouts)

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
        is_output = self._output is not None and self._output.id in made
        is_apart = region.makers.isdisjoint(region.sums)
        return region.n_parts > 1 and is_read_inside and is_apart and not is_output

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
        output = self._output(self._graph.output)
        kept = list(_needed(self._nodes, output))
        return DividedGraph(
            tuple(self._nodes[i] for i in kept), tuple(self._devices[i] for i in kept), output
        )

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
        """Add the partial sums of a node; what is added once goes to the first one."""
        op = OPS[node.op]
        assert op.sums is not None
        partial: _Copies = [None] * self._n_devices
        for device in cut.devices:
            inputs: list[Input] = []
            for operand, x in op.signature.declared(node.inputs):
                if operand.name == op.sums.rows:
                    assert isinstance(x, Value)
                    inputs.append(self._columns(x, device, cut))
                elif operand.name == op.sums.matrix:
                    assert isinstance(x, Weight)
                    sections = cut.region.layouts.get(node.rows(op.sums.rows).id, (x.cols,))
                    cols = cut.ranges(device, sections)
                    inputs.append(matrix_part(x, range(x.planes), range(x.rows), cols))
                elif operand.name in op.sums.once and device != cut.devices[0]:
                    inputs.append(None)
                else:
                    inputs.append(self._operand(x, device))
            outputs = tuple(self._copy(v) for v in node.outputs)
            self._add(device, replace(node, inputs=tuple(inputs), outputs=outputs))
            (partial[device],) = outputs
        self._sums[node.outputs[0].id] = partial, node.label

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
        """Return the output on the first device, which joins its parts if it is divided."""
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


def _needed(nodes: Sequence[Node], output: Value) -> Iterator[int]:
    """Yield the indices of the nodes that the output depends on, in order."""
    wanted: set[int | str] = {output.id}
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
