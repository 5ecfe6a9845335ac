"""Alternatives of launches: fused nodes that replace others in the steps that suit them.

Most fusions apply in every step. A fused node that is faster in some steps only is added after the
chain of nodes that it replaces, and each of these has a condition that says in which steps it runs.
A node can have several alternatives, for different numbers of tokens. All of them write the same
values to the same addresses, so alternatives need no memory of their own and are added after memory
is assigned. Their inputs may have to be kept longer (`held_inputs`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from zinc.core.dataclass import dataclass
from zinc.ops import OPS
from zinc.ops.node import Node
from zinc.ops.registry import Alternative
from zinc.ops.step import Otherwise, StepCondition
from zinc.ops.values import Value
from zinc.plan.passes import uses

ALTERNATIVES = tuple(op.alternative for op in OPS.values() if op.alternative is not None)
BY_LAST_OP = {
    last: tuple(each for each in ALTERNATIVES if each.ops[-1] == last)
    for last in {each.ops[-1] for each in ALTERNATIVES}
}


def add_alternatives(
    nodes: Sequence[Node], runs_fused: Callable[[Node], StepCondition | None]
) -> list[Node]:
    """Add a fused node after each chain of nodes that the backend can run as one.

    `runs_fused` returns the steps in which the backend runs a fused node, None if it has no kernel.
    """
    chains = list(_chains(nodes, runs_fused))
    result: list[Node] = []
    for i, node in enumerate(nodes):
        conditions = tuple(chain.condition for chain in chains if i in chain.indices)
        result.append(replace(node, when=Otherwise(conditions)) if conditions else node)
        result += [replace(x.node, when=x.condition) for x in chains if x.indices[-1] == i]
    return result


def held_inputs(
    nodes: Sequence[Node], runs_fused: Callable[[Node], StepCondition | None]
) -> dict[int, int]:
    """Return the values that alternatives read, by id, with the index of the node they follow.

    A backend whose fused kernels read inputs while they write outputs must keep these values until
    that node has run.
    """
    held: dict[int, int] = {}
    for chain in _chains(nodes, runs_fused):
        for value in chain.node.inputs:
            if isinstance(value, Value):
                held[value.id] = max(chain.indices[-1], held.get(value.id, 0))
    return held


@dataclass(frozen=True, slots=True)
class _Chain:
    """Nodes `indices` of a graph, the fused node, and the steps in which it runs."""

    indices: tuple[int, ...]
    node: Node
    condition: StepCondition


def _chains(
    nodes: Sequence[Node], runs_fused: Callable[[Node], StepCondition | None]
) -> Iterator[_Chain]:
    used = uses(nodes, None)
    made = {value.id: i for i, node in enumerate(nodes) for value in node.outputs}
    taken: defaultdict[int, list[StepCondition]] = defaultdict(list)
    for last in reversed(range(len(nodes))):
        for alternative in BY_LAST_OP.get(nodes[last].op, ()):
            indices = _chain(nodes, alternative, last, made, used)
            if indices is None or not _is_made_in_time(nodes, indices):
                continue
            node = alternative.fuse(*(nodes[i] for i in indices))
            condition = runs_fused(node) if node is not None else None
            if node is None or condition is None:
                continue
            if all(condition.excludes(other) for i in indices for other in taken[i]):
                for i in indices:
                    taken[i].append(condition)
                yield _Chain(tuple(sorted(indices)), node, condition)


def _chain(
    nodes: Sequence[Node],
    alternative: Alternative,
    last: int,
    made: Mapping[int, int],
    used: Mapping[int, int],
) -> tuple[int, ...] | None:
    """Return the indices of the chain of `alternative` that ends with `last`, None if none does.

    The index of the node `Alternative.beside` comes after those of the chain. A value that one node
    of the chain passes to the next must have no other readers, unless the fused node makes it too.
    """
    indices = [last]
    beside: list[int] = []
    for position in range(len(alternative.ops) - 1, -1, -1):
        node = nodes[indices[0]]
        if node.op != alternative.ops[position]:
            return None
        if position == 0:
            return (*indices, *beside)
        is_last = position == len(alternative.ops) - 1
        passed = (
            node.input(alternative.through) if is_last and alternative.through else node.inputs[0]
        )
        if not isinstance(passed, Value) or passed.id not in made:
            return None
        if position == 1 and alternative.beside:
            beside = [i for i, x in enumerate(nodes) if _copies(x, alternative.beside, passed)]
            if len(beside) != 1:
                return None
        is_made = alternative.ops[position - 1] in alternative.makes
        if used[passed.id] != 1 + len(beside) and not is_made:
            return None
        indices.insert(0, made[passed.id])
    return None


def _copies(node: Node, op: str, value: Value) -> bool:
    return node.op == op and node.inputs[0] == value


def _is_made_in_time(nodes: Sequence[Node], indices: Sequence[int]) -> bool:
    """Return whether no other node before the last of `indices` reads the outputs of these nodes.

    The fused node makes all of these outputs, after the last of `indices`.
    """
    outputs = {value.id for i in indices for value in nodes[i].outputs}
    between = (i for i in range(min(indices), max(indices)) if i not in indices)
    return not any(
        isinstance(x, Value) and x.id in outputs for i in between for x in nodes[i].inputs
    )
