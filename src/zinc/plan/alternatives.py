"""Alternatives of launches: fused nodes that replace others in the steps that suit them.

Most fusions apply in every step. A fused node that is faster in some steps only is added after the
chain of nodes that it replaces, and each of these has a condition that says in which steps it runs.
Both ways compute the same values at the same addresses, so alternatives need no memory of their own
and are added after memory is assigned. Their inputs may have to be kept longer (`held_inputs`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from zinc.ops import OPS
from zinc.ops.graph import Node
from zinc.ops.registry import Alternative
from zinc.ops.step import StepCondition
from zinc.ops.values import Value
from zinc.plan.passes import uses

ALTERNATIVES = tuple(op.alternative for op in OPS.values() if op.alternative is not None)


def add_alternatives(
    nodes: Sequence[Node], runs_fused: Callable[[Node], StepCondition | None]
) -> list[Node]:
    """Add a fused node after each chain of nodes that the backend can run as one.

    `runs_fused` returns the steps in which the backend runs a fused node, None if it has no kernel.
    """
    chains = list(_chains(nodes, runs_fused))
    replaced = {i: chain.condition.negation() for chain in chains for i in chain.indices}
    fused = {chain.indices[-1]: replace(chain.node, when=chain.condition) for chain in chains}
    result: list[Node] = []
    for i, node in enumerate(nodes):
        result.append(replace(node, when=replaced[i]) if i in replaced else node)
        if i in fused:
            result.append(fused[i])
    return result


def held_inputs(
    nodes: Sequence[Node], runs_fused: Callable[[Node], StepCondition | None]
) -> dict[int, int]:
    """Return the values that alternatives read, by id, with the index of the node they follow.

    A backend whose fused kernels read inputs while they write outputs must keep these values until
    that node has run.
    """
    return {
        value.id: chain.indices[-1]
        for chain in _chains(nodes, runs_fused)
        for value in chain.node.inputs
        if isinstance(value, Value)
    }


@dataclass(frozen=True, slots=True)
class _Chain:
    """Nodes `indices` of a graph, the fused node, and the steps in which that one runs."""

    indices: tuple[int, ...]
    node: Node
    condition: StepCondition


def _chains(
    nodes: Sequence[Node], runs_fused: Callable[[Node], StepCondition | None]
) -> Iterator[_Chain]:
    used = uses(nodes, None)
    made = {value.id: i for i, node in enumerate(nodes) for value in node.outputs}
    for last in range(len(nodes)):
        for alternative in ALTERNATIVES:
            indices = _chain(nodes, alternative, last, made, used)
            if indices is None:
                continue
            node = alternative.fuse(*(nodes[i] for i in indices))
            condition = runs_fused(node) if node is not None else None
            if node is not None and condition is not None:
                yield _Chain(indices, node, condition)
                break


def _chain(
    nodes: Sequence[Node],
    alternative: Alternative,
    last: int,
    made: Mapping[int, int],
    used: Mapping[int, int],
) -> tuple[int, ...] | None:
    """Return the indices of the nodes of the chain that ends with node `last`, None if none does.

    Only nodes of the chain may read the values that its nodes pass on.
    """
    indices = [last]
    for position in range(len(alternative.ops) - 1, -1, -1):
        node = nodes[indices[0]]
        if node.op != alternative.ops[position]:
            return None
        if position == 0:
            return tuple(indices)
        passed = node.inputs[0]
        if not isinstance(passed, Value) or passed.id not in made:
            return None
        if used[passed.id] != 1 and not (alternative.keeps_first and position == 1):
            return None
        indices.insert(0, made[passed.id])
    return None
