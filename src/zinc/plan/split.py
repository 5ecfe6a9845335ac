"""Division of a graph over several devices, and the transfers of values between them.

Nodes keep their order. Before a run of nodes that needs values of other devices, a device receives
all values that it will ever need and that exist by then, so each value is sent to a device once. In
the node list of a device a `receive` node makes these values, and in the list of the sender a
`send` node reads them. So fusion, row formats and memory handle them like other nodes, but they
have no launch. In the same way, `all_reduce` nodes add up the partial sums of a divided product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import groupby
from types import MappingProxyType

from zinc.backends.plans import (
    AllReduce,
    Plan,
    Ref,
    Segment,
    SplitPlan,
    Term,
    Transfer,
)
from zinc.core.dataclass import dataclass
from zinc.ops.node import Node
from zinc.ops.registry import OPS
from zinc.ops.values import Constant, KVState, RecurrentState, Value

SEND, RECEIVE, ALL_REDUCE = "send", "receive", "all_reduce"
HOST = -1  # the stop of a send to the host or a receive from it
TRANSFERS = {SEND, RECEIVE, ALL_REDUCE}  # nodes without an entry in zinc.ops


def split(
    nodes: Sequence[Node],
    device_of: Callable[[Node], int],
    n_devices: int,
    take_turns: bool = True,
) -> list[list[Node]]:
    """Return the nodes of each device, with sends and receives.

    take_turns: the devices work one after the other, so a receive is placed as early as possible,
    for fewer and longer turns. Otherwise it is placed right before the first reader, so that the
    devices work at the same time.

    The attribute `stop` identifies sends and receives that belong together, and the nodes of an
    all-reduce, which are given with one `stop` and follow each other. All nodes that use a
    state run on the device of the first one, and so do the norms and RoPE that are fused with them.
    Views of columns are made on every device that reads them, and so are values of constants, such
    as the table of RoPE angles.
    """
    turns = list(_turns(nodes, _devices(nodes, device_of)))
    wanted: list[set[int]] = [set() for _ in range(n_devices)]
    local = {v.id for node in nodes if _is_made_locally(node) for v in node.outputs}
    for device, turn in turns:
        wanted[device] |= _read(turn) - local
    lists = _NodeLists(wanted, take_turns)
    for device, turn in turns:
        lists.add(device, turn)
    return lists.nodes


class _NodeLists:
    """The node lists of the devices, which grow by one turn at a time.

    wanted: for each device, the ids of the values that it has yet to make or receive.
    """

    def __init__(self, wanted: list[set[int]], take_turns: bool) -> None:
        self.nodes: list[list[Node]] = [[] for _ in wanted]
        self._wanted, self._take_turns = wanted, take_turns
        # For each device, the index of the first node after its last send or receive. No other
        # device waits for the nodes that follow, so a receive is placed before them: fewer,
        # longer runs.
        self._since = [0] * len(wanted)
        self._makers: dict[Value, int] = {}
        self._reduces: dict[int, int] = {}  # the stop of each all-reduce
        self._n_stops = 0

    def add(self, device: int, turn: Sequence[Node]) -> None:
        """Append the nodes of a turn, after a receive of the values that they need."""
        made = {v: device for node in turn for v in node.outputs}
        self._wanted[device] -= {v.id for v in made}
        if _read(turn) & self._wanted[device]:
            self._receive(device)
        for node in turn:
            if node.op == ALL_REDUCE:
                node = self._with_stop(node)
                self._since[device] = len(self.nodes[device]) + 1
            self.nodes[device].append(node)
        self._makers |= made

    def _receive(self, device: int) -> None:
        """Send `device` all values that it needs and that exist."""
        wanted = self._wanted[device]
        received = [v for v in self._makers if v.id in wanted]
        attrs = MappingProxyType({"stop": self._n_stops})
        for source in sorted({self._makers[v] for v in received}):
            sent = tuple(v for v in received if self._makers[v] == source)
            self.nodes[source].append(Node(SEND, sent, (), attrs))
            self._since[source] = len(self.nodes[source])
        place = self._since[device] if self._take_turns else len(self.nodes[device])
        self.nodes[device].insert(place, Node(RECEIVE, (), tuple(received), attrs))
        self._since[device] = place + 1
        wanted -= {v.id for v in received}
        self._n_stops += 1

    def _with_stop(self, node: Node) -> Node:
        """Return an all-reduce node with a stop in the order of all stops."""
        stop = self._reduces.setdefault(int(node.attrs["stop"]), self._n_stops)
        self._n_stops = max(self._n_stops, stop + 1)
        return replace(node, attrs=MappingProxyType({"stop": stop}))


def _read(nodes: Sequence[Node]) -> set[int]:
    """Return the ids of the values that the nodes read."""
    return {v.id for node in nodes for v in node.inputs if isinstance(v, Value)}


def _devices(nodes: Sequence[Node], device_of: Callable[[Node], int]) -> list[int]:
    """Return the device of each node."""
    found = [device_of(node) for node in nodes]
    made = {v.id: i for i, node in enumerate(nodes) for v in node.outputs}
    homes: dict[str, int] = {}
    for i, node in enumerate(nodes):
        states = [x.name for x in node.inputs if isinstance(x, KVState | RecurrentState)]
        if not states:
            continue
        found[i] = home = homes.setdefault(states[0], found[i])
        for x in node.inputs:
            while isinstance(x, Value) and _prepares_heads(nodes[made[x.id]]):
                found[made[x.id]] = home
                x = nodes[made[x.id]].rows("x")
    return found


def _prepares_heads(node: Node) -> bool:
    return node.op not in TRANSFERS and OPS[node.op].prepares_heads


def _turns(nodes: Sequence[Node], devices: Sequence[int]) -> Iterator[tuple[int, list[Node]]]:
    """Yield runs of consecutive nodes on one device; each all-reduce node is a run of its own."""
    local = {node.outputs[0].id: node for node in nodes if _is_made_locally(node)}
    taken: set[tuple[int, int]] = set()  # device and id of the local values made there
    rest = (x for x in zip(devices, nodes, strict=True) if not _is_made_locally(x[1]))
    for (at, _), group in groupby(rest, lambda x: (x[0], x[1].op == ALL_REDUCE)):
        turn: list[Node] = []
        for _, node in group:
            for part in reversed(list(_local_nodes(node, local))):
                if (at, part.outputs[0].id) not in taken:
                    taken.add((at, part.outputs[0].id))
                    turn.append(replace(part, label=node.label))
            turn.append(node)
        yield at, turn


def _is_made_locally(node: Node) -> bool:
    """Return whether every device that reads the output of a node makes it."""
    if node.op in TRANSFERS:
        return False
    return node.op == "columns" or all(isinstance(x, Constant) for x in node.inputs)


def _local_nodes(node: Node, local: Mapping[int, Node]) -> Iterator[Node]:
    """Yield the local nodes that make inputs of a node, each before the one it reads."""
    for x in node.inputs:
        if isinstance(x, Value) and x.id in local:
            yield local[x.id]
            yield from _local_nodes(local[x.id], local)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A send or receive of a device, before its launch `at`."""

    at: int
    refs: tuple[Ref, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """The plan of one device, and its exchanges by stop.

    reduces: the total of an all-reduce, after the partial sum of the device, if it has one.
    """

    plan: Plan
    sends: Mapping[int, Exchange]
    receives: Mapping[int, Exchange]
    reduces: Mapping[int, Exchange] = field(default_factory=dict)


def join(parts: Sequence[Part]) -> SplitPlan:
    """Return the split plan of `parts`, exactly one of which makes the output.

    Before values are exchanged at a stop, the devices concerned run all launches before it.
    """
    schedule = _schedule(parts)
    plans = tuple(part.plan for part in parts)
    last = next(plan for plan in plans if plan.output.cols)
    return SplitPlan(
        launches=tuple(
            launch
            for x in schedule
            if isinstance(x, Segment)
            for launch in plans[x.device].launches[x.first : x.last]
        ),
        output=last.output,
        arena_bytes=sum(plan.arena_bytes for plan in plans),
        max_tokens=plans[0].max_tokens,
        max_outputs=plans[0].max_outputs,
        sampled=last.sampled,
        given=next((plan.given for plan in plans if plan.given is not None), None),
        hidden=next((plan.hidden for plan in plans if plan.hidden is not None), None),
        parts=plans,
        schedule=tuple(schedule),
    )


def _schedule(parts: Sequence[Part]) -> list[Segment | Transfer | AllReduce]:
    """Return the schedule of a split plan of `parts`."""
    stops = ((i, stop) for i, part in enumerate(parts) for stop in part.receives)
    receivers = {stop: i for i, stop in stops if stop != HOST}
    reduces = {stop for part in parts for stop in part.reduces}
    schedule = _Schedule(parts)
    for stop in sorted(receivers.keys() | reduces):
        if stop in receivers:
            schedule.transfer(stop, receivers[stop])
        else:
            schedule.all_reduce(stop)
    for device, part in enumerate(parts):
        schedule.run(device, len(part.plan.launches))
    return schedule.entries


class _Schedule:
    """The schedule of a split plan, which grows by one stop at a time."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.entries: list[Segment | Transfer | AllReduce] = []
        self._parts = parts
        self._done = [0] * len(parts)

    def run(self, device: int, until: int) -> None:
        """Append the launches of a device before `until` that are not in the schedule yet."""
        first = self._done[device]
        if until > first:
            self.entries.append(Segment(device, first, until))
            self._done[device] = until

    def transfer(self, stop: int, target: int) -> None:
        """Append the transfers of a stop to the device `target`."""
        senders = [i for i, part in enumerate(self._parts) if stop in part.sends]
        exchange = self._parts[target].receives[stop]
        for source in senders:
            self.run(source, self._parts[source].sends[stop].at)
        self.run(target, exchange.at)
        received = {ref.id: ref for ref in exchange.refs}
        self.entries += [
            Transfer(source, target, sent, received[sent.id])
            for source in senders
            for sent in self._parts[source].sends[stop].refs
        ]

    def all_reduce(self, stop: int) -> None:
        """Append the all-reduce of a stop."""
        terms = []
        for device, part in enumerate(self._parts):
            if stop in part.reduces:
                self.run(device, part.reduces[stop].at)
                *own, total = part.reduces[stop].refs
                terms.append(Term(device, own[0] if own else None, total))
        self.entries.append(AllReduce(tuple(terms)))
