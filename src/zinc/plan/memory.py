"""One arena for all activations: each value gets an offset for as long as it lives.

First fit by liveness. A residual or an in-place operand hands its bytes on to the output when
nobody reads it afterwards, so the residual stream of a decoder stays in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from zinc.ops.graph import Act, Dim, Node, Value
from zinc.plan.passes import View

ALIGNMENT = 4096
# op -> (output index -> input index) whose bytes the output may take over.
IN_PLACE: dict[str, Callable[[int], int]] = {
    "linear": lambda part: 3 + 3 * part,
    "rope_store": lambda _: 0,
    "rms_norm": lambda _: 2,
    "add": lambda _: 0,
    "scale": lambda _: 0,
    "softcap": lambda _: 0,
    "gate": lambda _: 0,
    "conv_silu": lambda _: 0,
    "moe_down": lambda _: 7,
}


@dataclass(slots=True)
class Arena:
    """Offsets by value id, and how large the arena must be."""

    offsets: dict[int, int]
    n_bytes: int


def stride(value: Value, row_bytes: Callable[[Act, int], int]) -> int:
    """Bytes from row to row of a value."""
    plain = row_bytes(value.act, value.cols)
    if value.act is Act.F32:
        return plain
    return max(plain, value.runs * row_bytes(value.act, value.cols // value.runs))


def assign(
    nodes: Sequence[Node],
    output: Value | None,
    rows: dict[Dim, int],
    row_bytes: Callable[[Act, int], int],
    views: Mapping[int, View] | None = None,
) -> Arena:
    """Places every value of `nodes`; `rows` bounds each dim. A view keeps its base alive."""
    views = views or {}
    last_read: dict[int, int] = {}

    def read(value: Value, at: int) -> None:
        last_read[value.id] = at
        if value.id in views:
            last_read[views[value.id].base.id] = at

    for i, node in enumerate(nodes):
        for value in (*node.inputs, *node.outputs):
            if isinstance(value, Value):
                read(value, i)
    if output is not None:
        read(output, len(nodes))

    offsets: dict[int, int] = {}
    sizes: dict[int, int] = {}
    live: list[tuple[int, int, int]] = []  # (offset, end, id), sorted
    top = 0
    for i, node in enumerate(nodes):
        for part, value in enumerate(node.outputs):
            size = rows[value.dim] * stride(value, row_bytes)
            size = -(-size // ALIGNMENT) * ALIGNMENT
            donor = _donor(node, part, i, last_read, value)
            if donor is not None and donor.id not in views and sizes[donor.id] >= size:
                at = offsets[donor.id]
                live = [x for x in live if x[2] != donor.id]
            else:
                at = _first_gap(live, size)
            offsets[value.id], sizes[value.id] = at, size
            live = sorted([*live, (at, at + size, value.id)])
            top = max(top, at + size)
        live = [x for x in live if last_read[x[2]] > i]
    return Arena(offsets, top)


def _donor(node: Node, part: int, i: int, last_read: dict[int, int], value: Value) -> Value | None:
    if node.op not in IN_PLACE or (index := IN_PLACE[node.op](part)) >= len(node.inputs):
        return None
    donor = node.inputs[index]
    if not isinstance(donor, Value) or last_read[donor.id] != i or donor.dim is not value.dim:
        return None
    if donor.act is not value.act or sum(v == donor for v in node.inputs) != 1:
        return None
    return donor


def _first_gap(live: list[tuple[int, int, int]], size: int) -> int:
    at = 0
    for start, end, _ in live:
        if start - at >= size:
            return at
        at = max(at, end)
    return at
