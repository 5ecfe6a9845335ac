"""A graph over several devices: who runs which node, and which values go from one to the other.

Nodes keep their order. Where a device takes its turn and lacks a value, it first receives all that
it is ever to read of what others have made by then; each value goes to a device once. In a device's
list of nodes that is a `receive`, which makes the values there, and in the lists of their makers a
`send`, which reads them: fusion, formats and memory see them as they see any node, and no launch
comes of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType

from zinc.backends.plans import (
    Plan,
    Ref,
    Segment,
    SplitPlan,
    Transfer,
)
from zinc.ops.graph import Node
from zinc.ops.registry import OPS
from zinc.ops.values import KVState, RecurrentState, Value

SEND, RECEIVE = "send", "receive"
TRANSFERS = {SEND, RECEIVE}  # nodes that are no ops: they have no entry in zinc.ops


def split(
    nodes: Sequence[Node], device_of: Callable[[Node], int], n_devices: int
) -> list[list[Node]]:
    """The nodes of each device, with sends and receives; `stop` numbers those that go together.

    A state is in one device: all nodes that have it run where the first of them does, and so do the
    norms and RoPE of its heads, which are one launch with it. Columns of a value are taken wherever
    they are read.
    """
    turns = list(_turns(nodes, _devices(nodes, device_of)))
    wanted: list[set[int]] = [set() for _ in range(n_devices)]  # values that a device lacks
    for at, turn in turns:
        wanted[at] |= _read(turn)
    lists: list[list[Node]] = [[] for _ in range(n_devices)]
    # Where a device's nodes since its last stop begin. None of them is waited for, so what it
    # receives may come before them, and they run together with those that read it.
    since = [0] * n_devices
    makers: dict[Value, int] = {}
    n_stops = 0
    for at, turn in turns:
        made = {v: at for node in turn for v in node.outputs}
        wanted[at] -= {v.id for v in made}
        if _read(turn) & wanted[at]:
            received = [v for v in makers if v.id in wanted[at]]
            attrs = MappingProxyType({"stop": n_stops})
            for source in sorted({makers[v] for v in received}):
                sent = tuple(v for v in received if makers[v] == source)
                lists[source].append(Node(SEND, sent, (), attrs))
                since[source] = len(lists[source])
            lists[at].insert(since[at], Node(RECEIVE, (), tuple(received), attrs))
            since[at] += 1
            wanted[at] -= {v.id for v in received}
            n_stops += 1
        lists[at] += turn
        makers |= made
    return lists


def _read(nodes: Sequence[Node]) -> set[int]:
    return {v.id for node in nodes for v in node.inputs if isinstance(v, Value)}


def _devices(nodes: Sequence[Node], device_of: Callable[[Node], int]) -> list[int]:
    """The device of each node."""
    found = [device_of(node) for node in nodes]
    made = {v.id: i for i, node in enumerate(nodes) for v in node.outputs}
    homes: dict[str, int] = {}
    for i, node in enumerate(nodes):
        states = [x.name for x in node.inputs if isinstance(x, KVState | RecurrentState)]
        if not states:
            continue
        found[i] = home = homes.setdefault(states[0], found[i])
        for x in node.inputs:
            while isinstance(x, Value) and OPS[nodes[made[x.id]].op].prepares_heads:
                found[made[x.id]] = home
                x = nodes[made[x.id]].rows("x")
    return found


def _turns(nodes: Sequence[Node], devices: Sequence[int]) -> Iterator[tuple[int, list[Node]]]:
    """Nodes that follow each other in one device."""
    columns = {node.outputs[0].id: node for node in nodes if node.op == "columns"}
    taken: set[tuple[int, int]] = set()  # device, and id of the columns that it has
    rest = ((at, node) for at, node in zip(devices, nodes, strict=True) if node.op != "columns")
    for at, group in groupby(rest, lambda x: x[0]):
        turn: list[Node] = []
        for _, node in group:
            for part in reversed(list(_columns_of(node, columns))):
                if (at, part.outputs[0].id) not in taken:
                    taken.add((at, part.outputs[0].id))
                    turn.append(part)
            turn.append(node)
        yield at, turn


def _columns_of(node: Node, columns: Mapping[int, Node]) -> Iterator[Node]:
    """The columns nodes behind the inputs of a node, each before those that it takes them from."""
    for x in node.inputs:
        if isinstance(x, Value) and x.id in columns:
            yield columns[x.id]
            yield from _columns_of(columns[x.id], columns)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A send or receive of a device: before its launch `at`."""

    at: int
    refs: tuple[Ref, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """The plan of a device, and its sends and receives by stop."""

    plan: Plan
    sends: Mapping[int, Exchange]
    receives: Mapping[int, Exchange]


def join(parts: Sequence[Part]) -> SplitPlan:
    """A plan of the parts, one of which makes the output: before a stop, its devices run up to
    it."""
    schedule: list[Segment | Transfer] = []
    done = [0] * len(parts)

    def run(device: int, until: int) -> None:
        if until > done[device]:
            schedule.append(Segment(device, done[device], until))
            done[device] = until

    receivers = {stop: i for i, part in enumerate(parts) for stop in part.receives}
    for stop, target in sorted(receivers.items()):
        senders = [i for i, part in enumerate(parts) if stop in part.sends]
        received = {ref.id: ref for ref in parts[target].receives[stop].refs}
        for source in senders:
            run(source, parts[source].sends[stop].at)
        run(target, parts[target].receives[stop].at)
        schedule += [
            Transfer(source, target, sent, received[sent.id])
            for source in senders
            for sent in parts[source].sends[stop].refs
        ]
    for device, part in enumerate(parts):
        run(device, len(part.plan.launches))
    plans = tuple(part.plan for part in parts)
    return SplitPlan(
        launches=tuple(
            launch
            for x in schedule
            if isinstance(x, Segment)
            for launch in plans[x.device].launches[x.first : x.last]
        ),
        output=next(plan.output for plan in plans if plan.output.cols),
        arena_bytes=sum(plan.arena_bytes for plan in plans),
        max_tokens=plans[0].max_tokens,
        max_outputs=plans[0].max_outputs,
        parts=plans,
        schedule=tuple(schedule),
    )
