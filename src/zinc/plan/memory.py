"""Assignment of arena memory to activations by liveness.

Each value gets the first gap that fits it among the values that are live at the same time. It only
reuses memory whose users it depends on anyway, so reuse adds no waiting and a device can still run
independent nodes concurrently. The output of an op may take over the memory of its residual or of
another in-place operand that is not read later, so the residual stream stays at one address.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from zinc.core.dataclass import dataclass
from zinc.core.rounding import round_up
from zinc.ops.node import Node
from zinc.ops.registry import OPS
from zinc.ops.values import Dim, KVState, RecurrentState, RowFormat, Value
from zinc.plan.passes import View
from zinc.plan.split import ALL_REDUCE, TRANSFERS

ALIGNMENT = 4096


@dataclass(slots=True)
class Arena:
    """The arena offset of each value, by id, and the size of the arena."""

    offsets: dict[int, int]
    n_bytes: int


def stride(value: Value, row_bytes: Callable[[RowFormat, int], int]) -> int:
    """Return the bytes from one row of a value to the next."""
    plain = row_bytes(value.format, value.cols)
    if value.format is RowFormat.F32:
        return plain
    return max(plain, value.runs * row_bytes(value.format, value.cols // value.runs))


def assign(
    nodes: Sequence[Node],
    output: Value | None,
    rows: dict[Dim, int],
    row_bytes: Callable[[RowFormat, int], int],
    views: Mapping[int, View] | None = None,
    held: Mapping[int, int] | None = None,
) -> Arena:
    """Return the arena of all values of `nodes`.

    rows: the most rows of each dim. views: by value id; a view keeps its base alive. held: the
    values, by id, that must be kept until the node with the given index has run.
    """
    views = views or {}
    last_read, users = _uses(nodes, output, views, held or {})
    before = _before(nodes, views)

    offsets: dict[int, int] = {}
    sizes: dict[int, int] = {}
    live: list[tuple[int, int, int]] = []  # (offset, end, id)
    dead: list[tuple[int, int, int]] = []  # values that no later node reads
    top = 0
    for i, node in enumerate(nodes):
        others = ~(before[i] | 1 << i)
        # Memory whose reuse would make this node wait for nodes that it does not depend on.
        unsafe = [x for x in dead if users[x[2]] & others]
        for part, value in enumerate(node.outputs):
            size = rows[value.dim] * stride(value, row_bytes)
            size = round_up(size, ALIGNMENT)
            donor = _donor(node, part, i, last_read, value)
            if (
                donor is not None
                and donor.id not in views
                and sizes[donor.id] >= size
                and not users[donor.id] & others
            ):
                at = offsets[donor.id]
                live = [x for x in live if x[2] != donor.id]
            else:
                at = _first_gap(live + unsafe, size)
            offsets[value.id], sizes[value.id] = at, size
            dead = [x for x in dead if x[0] < at or x[1] > at + size]
            live.append((at, at + size, value.id))
            top = max(top, at + size)
        dead += [x for x in live if last_read[x[2]] <= i]
        live = [x for x in live if last_read[x[2]] > i]
    return Arena(offsets, top)


def _uses(
    nodes: Sequence[Node],
    output: Value | None,
    views: Mapping[int, View],
    held: Mapping[int, int],
) -> tuple[dict[int, int], dict[int, int]]:
    """Return for each value, by id, its last node and a mask of all nodes that write or read it.

    Bit i of a mask is node i. The last node of the output is len(nodes).
    """
    last: dict[int, int] = {}
    users: dict[int, int] = {}

    def use(value: Value, at: int) -> None:
        last[value.id] = at
        users[value.id] = users.get(value.id, 0) | 1 << at

    for i, node in enumerate(nodes):
        for value in (*node.inputs, *node.outputs):
            if isinstance(value, Value):
                use(value, i)
                if value.id in views:
                    use(views[value.id].base, i)
    for id, at in held.items():
        held_id = views[id].base.id if id in views else id
        last[held_id] = max(last[held_id], at)
    if output is not None:
        use(output, len(nodes))
    return last, users


def _before(nodes: Sequence[Node], views: Mapping[int, View]) -> list[int]:
    """Return, for each node, a mask of all nodes that it depends on: bit i is node i."""
    result: list[int] = []
    made: dict[int, int] = {}
    touched: dict[str, int] = {}  # the last node that uses each state
    for i, node in enumerate(nodes):
        # An all-reduce waits for all earlier nodes of its device.
        mask = (1 << i) - 1 if node.op == ALL_REDUCE else 0
        for x in node.inputs:
            if isinstance(x, Value):
                j = made[views[x.id].base.id if x.id in views else x.id]
            elif isinstance(x, KVState | RecurrentState) and x.name in touched:
                j = touched[x.name]
            else:
                continue
            mask |= result[j] | 1 << j
        made.update((value.id, i) for value in node.outputs)
        touched.update((x.name, i) for x in node.inputs if isinstance(x, KVState | RecurrentState))
        result.append(mask)
    return result


def _donor(node: Node, part: int, i: int, last_read: dict[int, int], value: Value) -> Value | None:
    """Return the operand of node `i` whose memory the output `value` may take over, if any."""
    operand = None if node.op in TRANSFERS else OPS[node.op].signature.in_place
    donor = None if operand is None else node.input(operand.name, part)
    if not isinstance(donor, Value) or last_read[donor.id] != i or donor.dim is not value.dim:
        return None
    if donor.format is not value.format or sum(v == donor for v in node.inputs) != 1:
        return None
    return donor


def _first_gap(taken: list[tuple[int, int, int]], size: int) -> int:
    """Return the lowest offset at which `size` bytes are free."""
    at = 0
    for start, end, _ in sorted(taken):
        if start - at >= size:
            return at
        at = max(at, end)
    return at
