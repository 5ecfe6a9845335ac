"""Alternatives of launches: fused nodes that replace others in the steps that suit them.

Most fusions apply in every step. A fused node that is faster in some steps only is added after the
nodes that it replaces, and each of these nodes has a condition that says in which steps it runs.
Both ways compute the same values at the same addresses, so alternatives need no memory of their own
and are added after memory is assigned. Their inputs may have to be kept longer (`held_inputs`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType

from zinc.ops.graph import Node
from zinc.ops.step import StepCondition
from zinc.ops.values import Value
from zinc.plan.passes import uses


def add_alternatives(
    nodes: Sequence[Node], runs_fused: Callable[[Node], StepCondition | None]
) -> list[Node]:
    """Add `rope_attention` after each rope_store and attention that the backend can run as one.

    `runs_fused` returns the steps in which the backend runs a fused node, None if it has no kernel.
    """
    fused = {i: (node, condition) for i, node, condition in _fused_nodes(nodes, runs_fused)}
    result: list[Node] = []
    for i, node in enumerate(nodes):
        result.append(node)
        if i not in fused:
            continue
        alternative, condition = fused[i]
        parts = (replace(part, when=condition.negation()) for part in nodes[i - 1 : i + 1])
        result[-2:] = [*parts, replace(alternative, when=condition)]
    return result


def held_inputs(
    nodes: Sequence[Node], runs_fused: Callable[[Node], StepCondition | None]
) -> dict[int, int]:
    """Return the values that alternatives read, by id, with the index of the node they replace.

    A backend whose fused kernels read inputs while they write outputs must keep these values until
    that node has run.
    """
    return {
        value.id: i
        for i, node, _ in _fused_nodes(nodes, runs_fused)
        for value in node.inputs
        if isinstance(value, Value)
    }


def _fused_nodes(
    nodes: Sequence[Node], runs_fused: Callable[[Node], StepCondition | None]
) -> Iterator[tuple[int, Node, StepCondition]]:
    """Yield each fused node with its condition and the index of the second node it replaces."""
    used = uses(nodes, None)
    for i, (first, second) in enumerate(pairwise(nodes), start=1):
        if first.op != "rope_store" or second.op != "attention":
            continue
        if first.input("cache") != second.input("cache") or used[first.outputs[0].id] != 1:
            continue
        fused = _rope_attention(first, second)
        condition = runs_fused(fused)
        if condition is not None:
            yield i, fused, condition


def _rope_attention(store: Node, attention: Node) -> Node:
    heads = tuple(store.input(x) for x in ("q", "k", "v", "table", "q_norm", "k_norm", "cache"))
    return Node(
        "rope_attention",
        (*heads, attention.input("sinks")),
        attention.outputs,
        MappingProxyType({**store.attrs, **attention.attrs}),
        attention.label,
    )
