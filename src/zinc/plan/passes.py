"""Rewrites of a graph before memory is assigned: fusions and the choice of row formats.

A pass maps a list of nodes to a list of nodes that computes the same values. `ref` runs both, and a
test compares them. A pass looks at structure only, never at the name of a model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeAlias

from zinc.core.errors import UnsupportedError
from zinc.ops.graph import Node
from zinc.ops.registry import OPS
from zinc.ops.values import Dim, Input, KVState, RowFormat, Value, Weight
from zinc.plan.split import TRANSFERS

Pass: TypeAlias = Callable[[Sequence[Node], Value | None], list[Node]]
RowFormatOf: TypeAlias = Callable[[Weight], RowFormat]
Stores: TypeAlias = Callable[[str, RowFormat], bool]

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
            gate, up = (made[v.id] for v in node.inputs if isinstance(v, Value))
            fits = all(
                part.op == "linear" and _may_take_residual(part) and used[part.outputs[0].id] == 1
                for part in (gate, up)
            )
            if fits and gate.rows("x") == up.rows("x"):
                weights = gate.weight("weight"), up.weight("weight")
                is_apart = any(weight.tensor in apart for weight in weights)
                if not is_apart and row_format(weights[0]) == row_format(weights[1]):
                    dropped |= {id(gate), id(up)}
                    inputs = (gate.rows("x"), *weights, gate.input("bias"), up.input("bias"))
                    node = replace(node, op="linear_glu", inputs=inputs)
        result.append(node)
    return [node for node in result if id(node) not in dropped]


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
class _Heads:
    """The rows of q, k or v, and the nodes that apply norm and RoPE to their heads, if any."""

    rows: Value
    norm: Node | None
    rope: Node | None

    @property
    def nodes(self) -> list[Node]:
        return [node for node in (self.norm, self.rope) if node is not None]

    @property
    def table(self) -> Input:
        return self.rope.input("table") if self.rope else None

    @property
    def norm_weight(self) -> Input:
        return self.norm.input("weight") if self.norm else None


def fuse_rope_store(nodes: Sequence[Node], output: Value | None, ids: Iterator[int]) -> list[Node]:
    """Fuse per-head norm, RoPE and the cache write of each op that reads a cache into one node.

    A RoPE that cannot be fused becomes such a node by itself: one before a norm, or those of
    queries and keys with different tables. New values take their ids from `ids`.
    """
    made, used = producers(nodes), uses(nodes, output)

    def unwrap(value: Value, op: str) -> tuple[Value, Node | None]:
        """Return the input of the `op` node that makes `value`, and the node if it can be fused."""
        node = made.get(value.id)
        if node is None or node.op != op or used[value.id] != 1:
            return value, None
        return node.rows("x"), node

    def heads(value: Value, head_dim: int) -> _Heads:
        turned, rope = unwrap(value, "rope")
        rows, norm = unwrap(turned, "rms_norm")
        if norm is not None and int(norm.attrs["group"]) != head_dim:
            rows, norm = turned, None  # a norm of the whole row, not of each head
        if norm is not None and norm.input("weight") is None:
            rows, norm = turned, None  # without a weight, rope_store does not normalise
        return _Heads(rows, norm, rope)

    def values(value: Input) -> _Heads | None:
        """Return the rows of v. A norm is part of the result only if it has no weight."""
        if not isinstance(value, Value):
            return None
        rows, norm = unwrap(value, "rms_norm")
        if norm is not None and norm.input("weight") is not None:
            rows, norm = value, None
        return _Heads(rows, norm, None)

    stores: dict[KVState, Node] = {}  # the last kv_store of each state that no node has read yet
    dropped: set[int] = set()
    prepared: dict[int, list[Node]] = {}  # each reader and the rope_store before it, by id
    for node in nodes:
        if node.op == "kv_store":
            stores[_cache(node)] = node
        if node.op in TRANSFERS or not OPS[node.op].reads_cache:
            continue
        state = _cache(node)
        store = stores.pop(state, None)  # None if the layer reads another layer's cache
        q, k, v = heads(node.rows("q"), state.head_dim), None, None
        if store is not None:
            k, v = heads(store.rows("k"), state.head_dim), values(store.input("v"))
            dropped.add(id(store))
            if q.table != k.table:
                q, k = _Heads(node.rows("q"), None, None), _Heads(store.rows("k"), None, None)
        dropped |= {id(n) for part in (q, k, v) if part is not None for n in part.nodes}
        store = _rope_store(node, state, q, k, v)
        if not q.nodes:  # the node reads the queries as they are
            store = replace(store, outputs=(replace(q.rows, id=next(ids)),))
        prepared[id(node)] = [store, node.with_input("q", store.outputs[0])]
    result: list[Node] = []
    for node in nodes:
        if id(node) not in dropped:
            result.extend(prepared.get(id(node), [node]))
    return [_rope_alone(node) if node.op == "rope" else node for node in result]


def _cache(node: Node) -> KVState:
    """Return the KV cache that a node reads or a kv_store writes."""
    found = node.input("cache")
    assert isinstance(found, KVState)
    return found


def _rope_alone(node: Node) -> Node:
    """Return the rope_store that rotates the heads of a rope node and stores nothing."""
    (out,), head_dim = node.outputs, int(node.attrs["head_dim"])
    attrs = {
        "n_heads": out.cols // head_dim,
        "n_kv_heads": 1,
        "head_dim": head_dim,
        "rope_dims": int(node.attrs["rope_dims"]),
        "neox": int(node.attrs["neox"]),
        "eps": 0.0,
        "v_norm": 0,
    }
    inputs = (node.rows("x"), None, None, node.rows("table"), None, None, None)
    return replace(node, op="rope_store", inputs=inputs, attrs=MappingProxyType(attrs))


def _rope_store(
    reader: Node, state: KVState, q: _Heads, k: _Heads | None, v: _Heads | None
) -> Node:
    rope = q.rope or (k.rope if k else None)
    norms = [part.norm for part in (q, k, v) if part is not None and part.norm is not None]
    rotated = reader.rows("q")
    inputs = (
        q.rows,
        k.rows if k else None,
        v.rows if v else None,
        rope.input("table") if rope else None,
        q.norm_weight,
        k.norm_weight if k else None,
        state if k else None,
    )
    attrs = {
        "n_heads": rotated.cols // state.head_dim,
        "n_kv_heads": state.n_heads,
        "head_dim": state.head_dim,
        "rope_dims": int(rope.attrs["rope_dims"]) if rope else 0,
        "neox": int(rope.attrs["neox"]) if rope else 0,
        "eps": float(norms[0].attrs["eps"]) if norms else 0.0,
        "v_norm": int(v is not None and v.norm is not None),
    }
    return Node("rope_store", inputs, (rotated,), MappingProxyType(attrs), reader.label)


def choose_row_formats(
    nodes: Sequence[Node],
    output: Value | None,
    row_format: RowFormatOf,
    stores: Stores,
    ids: Iterator[int],
) -> list[Node]:
    """Store the rows that products read in the formats that their kernels need.

    The producer of the rows stores them in that format if it can and no node needs them in float32.
    Otherwise a quantize node converts them. A selection of rows copies them in the same format.
    A node that accepts rows of any format reads the format that other nodes need.
    Raises UnsupportedError for a product whose weights need rows in different formats. New values
    take their ids from `ids`.
    """
    made, used = producers(nodes), uses(nodes, output)
    wanted: dict[int, Counter[RowFormat]] = {}
    copied: dict[int, RowFormat] = {}  # formats of the values that a selection reads, by id
    if output is not None:
        wanted[output.id] = Counter([RowFormat.F32])
    for node in reversed(nodes):
        if node.op == "select_rows":
            x, (out,) = node.rows("x"), node.outputs
            formats, source = wanted.get(out.id, Counter()), made.get(x.id)
            if len(formats) == 1 and used[x.id] == 1 and source is not None:
                format = next(iter(formats))
                copied[x.id] = format if _can_store(source, format, stores) else RowFormat.F32
        for value in node.inputs:
            if isinstance(value, Value) and not _takes_any(node, value):
                format = _wants(node, value, row_format, copied)
                wanted.setdefault(value.id, Counter())[format] += 1

    stored: dict[tuple[int, RowFormat], Value] = {}

    def reads(node: Node, value: Value) -> Value:
        """Return the stored value that `node` reads in place of `value`."""
        if _takes_any(node, value):
            formats = (RowFormat.F32, *wanted.get(value.id, ()))
            return next(stored[value.id, each] for each in formats if (value.id, each) in stored)
        return stored[value.id, _wants(node, value, row_format, copied)]

    result: list[Node] = []
    for node in nodes:
        outputs = []
        casts: list[Node] = []
        for value in node.outputs:
            formats = wanted.get(value.id, Counter())
            only = next(iter(formats)) if len(formats) == 1 else None
            if only is not None and _makes(node, only, stores, copied):
                out = replace(value, format=only)
                outputs.append(out)
                stored[value.id, only] = out
                continue
            outputs.append(value)
            stored[value.id, RowFormat.F32] = value
            for format in formats:
                if format is not RowFormat.F32:
                    out = replace(value, id=next(ids), format=format)
                    stored[value.id, format] = out
                    label = node.label or _reader_label(value, nodes)
                    casts.append(Node("quantize", (value,), (out,), label=label))
        inputs = tuple(reads(node, v) if isinstance(v, Value) else v for v in node.inputs)
        result.append(replace(node, inputs=inputs, outputs=tuple(outputs)))
        result.extend(casts)
    return result


def _reader_label(value: Value, nodes: Sequence[Node]) -> str:
    """Return the label of the first node with a label that reads `value`; empty without one."""
    return next((node.label for node in nodes if value in node.inputs and node.label), "")


def _takes_any(node: Node, value: Value) -> bool:
    """Return whether `node` can read `value` in any row format."""
    operand = None if node.op in TRANSFERS else OPS[node.op].signature.any_format
    return operand is not None and value == node.input(operand.name)


def _wants(
    node: Node, value: Value, row_format: RowFormatOf, copied: Mapping[int, RowFormat]
) -> RowFormat:
    """Return the format in which `node` reads `value`."""
    if node.op == "select_rows":
        return copied.get(value.id, RowFormat.F32)
    operand = None if node.op in TRANSFERS else OPS[node.op].signature.weight_format
    if operand is None or value != node.input(operand.name):
        return RowFormat.F32
    first, *others = (w for w in node.inputs if isinstance(w, Weight) and not w.is_vector)
    format = row_format(first)
    for other in others:
        if row_format(other) is not format:
            raise UnsupportedError(
                f"{first.name} and {other.name} cannot be multiplied together",
                f"{first.type.name} weights read rows as {format} and {other.type.name} weights as "
                f"{row_format(other)}",
                "use a file in which both have one quantisation, or {backend=ref}",
            )
    return format


def _makes(node: Node, format: RowFormat, stores: Stores, copied: Mapping[int, RowFormat]) -> bool:
    """Return whether `node` can make its output in `format`. A selection keeps its input's."""
    if node.op == "select_rows":
        return format is copied.get(node.rows("x").id, RowFormat.F32)
    return _can_store(node, format, stores)


def _can_store(node: Node, format: RowFormat, stores: Stores) -> bool:
    """Return whether the kernel of `node` can store its output in `format`."""
    if format is RowFormat.F32:
        return True
    if node.op in TRANSFERS:
        return False
    declared = OPS[node.op].signature.declared(node.inputs)
    has_residual = any(operand.residual and x is not None for operand, x in declared)
    return not has_residual and stores(node.op, format)


@dataclass(frozen=True, slots=True)
class View:
    """Columns of the value `base` from `first` on, without memory of its own."""

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
