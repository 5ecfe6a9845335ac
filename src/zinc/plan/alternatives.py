"""Alternatives of launches: fused nodes that replace others in the steps that suit them.

Most fusions apply in every step. A fused node that is faster in some steps only is added after the
nodes that it replaces, and each of these nodes has a condition that says in which steps it runs.
Both ways compute the same values at the same addresses, so alternatives need no memory of their own
and are added after memory is assigned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType

from zinc.ops.graph import Node
from zinc.ops.step import StepCondition
from zinc.plan.passes import uses


def add_alternatives(
    nodes: Sequence[Node], runs_fused: Callable[[Node], StepCondition | None]
) -> list[Node]:
    """Add `rope_attention` after each rope_store and attention that the backend can run as one.

    `runs_fused` returns the steps in which the backend runs a fused node, None if it has no kernel.
    """
    used = uses(nodes, None)
    result = list(nodes[:1])
    for first, second in pairwise(nodes):
        result.append(second)
        if first.op != "rope_store" or second.op != "attention":
            continue
        if first.input("cache") != second.input("cache") or used[first.outputs[0].id] != 1:
            continue
        fused = _rope_attention(first, second)
        condition = runs_fused(fused)
        if condition is not None:
            parts = (replace(node, when=condition.negation()) for node in (first, second))
            result[-2:] = [*parts, replace(fused, when=condition)]
    return result


def _rope_attention(store: Node, attention: Node) -> Node:
    heads = tuple(store.input(x) for x in ("q", "k", "v", "table", "q_norm", "k_norm", "cache"))
    return Node(
        "rope_attention",
        (*heads, attention.input("sinks")),
        attention.outputs,
        MappingProxyType({**store.attrs, **attention.attrs}),
        attention.label,
    )
