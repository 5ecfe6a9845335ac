"""Dispatches of a step as a directed acyclic graph: which dispatch must wait for which.

A host uses either `levels`, with a barrier between two levels, or `edges` for the nodes of a CUDA
graph. Both express the same order.
"""

from __future__ import annotations

from collections.abc import Sequence

from zinc.backends.plans import Plan
from zinc.core.dataclass import dataclass
from zinc.gpu.addresses import Addresses
from zinc.gpu.bucket import Bucket
from zinc.gpu.dispatch import Dispatch
from zinc.gpu.kernel_set import KernelSet


@dataclass(frozen=True, slots=True)
class Node:
    """A dispatch of launch number `launch`. It starts after the nodes `after` have ended."""

    launch: int
    dispatch: Dispatch
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DispatchGraph:
    """The dispatches of a step, ordered so that a node follows all nodes that it waits for."""

    nodes: tuple[Node, ...]

    def levels(self) -> list[list[Node]]:
        """Return the nodes in levels: each node is one level above the highest it waits for."""
        depth: list[int] = []
        levels: list[list[Node]] = []
        for node in self.nodes:
            depth.append(max((depth[i] + 1 for i in node.after), default=0))
            if depth[-1] == len(levels):
                levels.append([])
            levels[depth[-1]].append(node)
        return levels

    def edges(self) -> list[tuple[int, int]]:
        """Return the edges (earlier, later) of the transitive reduction."""
        reached: list[int] = []  # for each node a mask of its ancestors
        edges: list[tuple[int, int]] = []
        for i, node in enumerate(self.nodes):
            implied = 0
            for j in node.after:
                implied |= reached[j]
            edges += [(j, i) for j in node.after if not implied >> j & 1]
            reached.append(implied | sum(1 << j for j in set(node.after)))
        return edges


def dispatch_graph(
    kernels: KernelSet,
    plan: Plan,
    dependencies: Sequence[tuple[int, ...]],
    at: Addresses,
    bucket: Bucket,
) -> DispatchGraph:
    """Return the dispatches of a step of `bucket`.

    `dependencies` are those of the launches, from `zinc.gpu.hazards`. Launches that share scratch
    memory wait for each other too. If the last dispatch of a launch is fused with the first one of
    the next launch, it writes scratch memory of the next launch, so the first launch also waits for
    the earlier users of that memory. Raises UnsupportedError.
    """
    lowered: list[list[Dispatch]] = []
    after: list[set[int]] = []  # launches that each launch waits for
    before = 0  # the last launch that has dispatches
    scratch: list[tuple[int, int, int]] = []  # in use: launch, start, end
    for i, launch in enumerate(plan.launches):
        dispatches = kernels.lower(launch, at, bucket)
        taken = list(at.scratch.taken)
        reused = {j for j, a, b in scratch for start, end in taken if a < end and start < b}
        joined = None
        if before in dependencies[i] and before not in reused:
            joined = kernels.joined(plan.launches[before], lowered[before], dispatches)
        if joined is not None:
            lowered[before], dispatches = [*lowered[before][:-1], joined], dispatches[1:]
            after[before] |= reused
        lowered.append(dispatches)
        after.append({*dependencies[i], *reused})
        before = i if dispatches else before
        scratch = [x for x in scratch if not any(a <= x[1] and x[2] <= b for a, b in taken)]
        scratch += [(i, start, end) for start, end in taken]
    return DispatchGraph(tuple(_nodes(lowered, after)))


def _nodes(lowered: Sequence[Sequence[Dispatch]], after: Sequence[set[int]]) -> list[Node]:
    nodes: list[Node] = []
    last: list[tuple[int, ...]] = []  # nodes after which each launch has ended
    for i, dispatches in enumerate(lowered):
        before = tuple(sorted({node for j in after[i] for node in last[j]}))
        started: list[int] = []  # dispatches of the launch that run side by side
        for dispatch in dispatches:
            if dispatch.waits and started:
                before, started = tuple(started), []
            started.append(len(nodes))
            nodes.append(Node(i, dispatch, before))
        last.append(tuple(started) or before)
    return nodes
