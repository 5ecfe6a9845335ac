"""Choice of the row format in which each value is stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from zinc.core.errors import UnsupportedError
from zinc.ops.node import Node
from zinc.ops.registry import OPS
from zinc.ops.values import RowFormat, Value, Weight
from zinc.plan.passes import RowFormatOf, producers, uses
from zinc.plan.split import TRANSFERS

Stores: TypeAlias = Callable[[str, RowFormat], bool]


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
    formats = _ReadFormats(nodes, output, row_format, stores)
    stored: dict[tuple[int, RowFormat], Value] = {}
    result: list[Node] = []
    for node in nodes:
        outputs: list[Value] = []
        casts: list[Node] = []
        for value in node.outputs:
            own = formats.stored_by(node, value)
            outputs.append(value if value.format is own else replace(value, format=own))
            stored[value.id, own] = outputs[-1]
            for format in formats.of(value):
                if format is not own:
                    cast = replace(value, id=next(ids), format=format)
                    stored[value.id, format] = cast
                    label = node.label or _reader_label(value, nodes)
                    casts.append(Node("quantize", (value,), (cast,), label=label))
        inputs = tuple(
            formats.read_by(node, x, stored) if isinstance(x, Value) else x for x in node.inputs
        )
        result.append(replace(node, inputs=inputs, outputs=tuple(outputs)))
        result.extend(casts)
    return result


class _ReadFormats:
    """The row formats in which the nodes of a graph read each value."""

    def __init__(
        self,
        nodes: Sequence[Node],
        output: Value | None,
        row_format: RowFormatOf,
        stores: Stores,
    ) -> None:
        self._row_format, self._stores = row_format, stores
        self._made, self._used = producers(nodes), uses(nodes, output)
        self._formats: dict[int, Counter[RowFormat]] = {}
        self._selected: dict[int, RowFormat] = {}  # formats of the values that a selection reads
        if output is not None:
            self._formats[output.id] = Counter([RowFormat.F32])
        for node in reversed(nodes):
            if node.op == "select_rows":
                self._add_selection(node)
            for value in node.inputs:
                if isinstance(value, Value) and not _takes_any(node, value):
                    self._formats.setdefault(value.id, Counter())[self._needed_by(node, value)] += 1

    def of(self, value: Value) -> Mapping[RowFormat, int]:
        """Return the formats that nodes need `value` in, with the number of reads."""
        return self._formats.get(value.id, {})

    def stored_by(self, node: Node, value: Value) -> RowFormat:
        """Return the format in which `node` stores its output `value`."""
        formats = self.of(value)
        only = next(iter(formats)) if len(formats) == 1 else RowFormat.F32
        if node.op == "select_rows":
            able = only is self._selected.get(node.rows("x").id, RowFormat.F32)
        else:
            able = _can_store(node, only, self._stores)
        return only if able else RowFormat.F32

    def read_by(
        self, node: Node, value: Value, stored: Mapping[tuple[int, RowFormat], Value]
    ) -> Value:
        """Return the value of `stored` that `node` reads in place of `value`."""
        if not _takes_any(node, value):
            return stored[value.id, self._needed_by(node, value)]
        formats = (RowFormat.F32, *self.of(value))
        return next(stored[value.id, each] for each in formats if (value.id, each) in stored)

    def _add_selection(self, node: Node) -> None:
        """Let a selection copy rows in the one format that its readers need, if possible."""
        x, formats = node.rows("x"), self.of(node.outputs[0])
        source = self._made.get(x.id)
        if len(formats) == 1 and self._used[x.id] == 1 and source is not None:
            format = next(iter(formats))
            able = _can_store(source, format, self._stores)
            self._selected[x.id] = format if able else RowFormat.F32

    def _needed_by(self, node: Node, value: Value) -> RowFormat:
        """Return the format in which `node` reads `value`."""
        if node.op == "select_rows":
            return self._selected.get(value.id, RowFormat.F32)
        operand = None if node.op in TRANSFERS else OPS[node.op].signature.weight_format
        if operand is None or value != node.input(operand.name):
            return RowFormat.F32
        return _weight_format(node, self._row_format)


def _reader_label(value: Value, nodes: Sequence[Node]) -> str:
    """Return the label of the first node with a label that reads `value`; empty without one."""
    return next((node.label for node in nodes if value in node.inputs and node.label), "")


def _takes_any(node: Node, value: Value) -> bool:
    """Return whether `node` can read `value` in any row format."""
    operand = None if node.op in TRANSFERS else OPS[node.op].signature.any_format
    return operand is not None and value == node.input(operand.name)


def _weight_format(node: Node, row_format: RowFormatOf) -> RowFormat:
    """Return the row format for all weights of a product. Raises UnsupportedError."""
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


def _can_store(node: Node, format: RowFormat, stores: Stores) -> bool:
    """Return whether the kernel of `node` can store its output in `format`."""
    if format is RowFormat.F32:
        return True
    if node.op in TRANSFERS:
        return False
    declared = OPS[node.op].signature.declared(node.inputs)
    has_residual = any(operand.residual and x is not None for operand, x in declared)
    return not has_residual and stores(node.op, format)
