"""Division of a graph over several devices, and the transfers of values between them.

Nodes keep their order. Before a run of nodes that needs values of other devices, a device receives
all values that it will ever need and that exist by then, so each value is sent to a device once. In
the node list of a device a `receive` node makes these values, and in the list of the sender a
`send` node reads them. So fusion, row formats and memory handle them like other nodes, but they
have no launch. In the same way, `all_reduce` nodes add up the partial sums of a divided product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from zinc.ops.graph import Node
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
    wanted: list[set[int]] = [set() for _ in range(n_devices)]  # values to be received
    local = {v.id for node in nodes if _is_made_locally(node) for v in node.outputs}
    for at, turn in turns:
        wanted[at] |= _read(turn) - local
    lists: list[list[Node]] = [[] for _ in range(n_devices)]
    # For each device, the index of the first node after its last send or receive. No other device
    # waits for the nodes from there on, so a receive is placed before them: fewer, longer runs.
    since = [0] * n_devices
    makers: dict[Value, int] = {}
    reduces: dict[int, int] = {}  # the stop of each all-reduce
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
            place = since[at] if take_turns else len(lists[at])
            lists[at].insert(place, Node(RECEIVE, (), tuple(received), attrs))
            since[at] = place + 1
            wanted[at] -= {v.id for v in received}
            n_stops += 1
        for node in turn:
            if node.op == ALL_REDUCE:
                stop = reduces.setdefault(int(node.attrs["stop"]), n_stops)
                n_stops = max(n_stops, stop + 1)
                node = replace(node, attrs=MappingProxyType({"stop": stop}))
                since[at] = len(lists[at]) + 1
            lists[at].append(node)
        makers |= made
    return lists


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
    schedule: list[Segment | Transfer | AllReduce] = []
    done = [0] * len(parts)

    def run(device: int, until: int) -> None:
        if until > done[device]:
            schedule.append(Segment(device, done[device], until))
            done[device] = until

    stops = ((i, stop) for i, part in enumerate(parts) for stop in part.receives)
    receivers = {stop: i for i, stop in stops if stop != HOST}
    for stop in sorted({*receivers, *(stop for part in parts for stop in part.reduces)}):
        if stop not in receivers:
            terms = []
            for device, part in enumerate(parts):
                if stop in part.reduces:
                    run(device, part.reduces[stop].at)
                    *own, total = part.reduces[stop].refs
                    terms.append(Term(device, own[0] if own else None, total))
            schedule.append(AllReduce(tuple(terms)))
            continue
        target = receivers[stop]
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
