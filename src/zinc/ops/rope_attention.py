"""RoPE, the cache write and attention of one layer in one op, for steps of few tokens.

It replaces `rope_store` and the `attention` after it in the steps that suit a backend's kernel. The
rotated queries are not stored. The output may overlap q, k and v in memory, so a kernel must have
read them before it writes, unless its backend holds the inputs of fused nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import MappingProxyType

from zinc.ops.attention import CacheView, attention, attention_cost
from zinc.ops.cases import Case
from zinc.ops.costs import elementwise_cost
from zinc.ops.node import Node
from zinc.ops.operands import cache, rows, vector
from zinc.ops.registry import Alternative, Attrs, Cost, Phase, op
from zinc.ops.rope import rope_store
from zinc.ops.step import Step
from zinc.ops.values import FloatArray


def _cost(node: Node) -> Cost:
    """Return the cost of attention, with the rows of k, v and the table read too."""
    beside = [node.input(name) for name in ("k", "v", "table")]
    read = elementwise_cost(replace(node, inputs=tuple(beside), outputs=()))
    cost = attention_cost(node)
    return replace(
        cost,
        row_bytes=cost.row_bytes + read.row_bytes,
        row_flops=cost.row_flops + 4 * node.rows("q").cols,
    )


def _no_cases() -> Iterator[Case]:
    return iter(())  # runs in the cases of attention that have few tokens


def _fused(store: Node, attention: Node) -> Node | None:
    """Return the fused node of a rope_store and the attention that reads its queries."""
    if store.input("cache") != attention.input("cache"):
        return None  # the layer reads the cache of another layer
    if not attention.attrs.get("causal", 1):
        return None  # other tokens of the step follow the key
    if attention.input("keys") is not None:
        return None  # it sees some of the positions only
    heads = tuple(store.input(x) for x in ("q", "k", "v", "table", "q_norm", "k_norm", "cache"))
    return Node(
        "rope_attention",
        (*heads, attention.input("sinks")),
        attention.outputs,
        MappingProxyType({**store.attrs, **attention.attrs}),
        attention.label,
    )


@op(
    rows("q"),
    rows("k"),
    rows("v", optional=True),
    rows("table", optional=True),
    vector("q_norm", optional=True),
    vector("k_norm", optional=True),
    cache("cache", written=True),
    vector("sinks", optional=True),
    cost=_cost,
    cases=_no_cases,
    tolerance=2e-3,  # the cache holds float16
    phase=Phase.ATTENTION,
    optional=True,
    alternative=Alternative(("rope_store", "attention"), _fused),
)
def rope_attention(
    step: Step,
    attrs: Attrs,
    q: FloatArray,
    k: FloatArray,
    v: FloatArray | None,
    table: FloatArray | None,
    q_norm: FloatArray | None,
    k_norm: FloatArray | None,
    cache: CacheView,
    sinks: FloatArray | None,
) -> Sequence[FloatArray]:
    """Run rope_store on q, k and v, then attention on the rotated q.

    The attributes are those of both ops.
    """
    (rotated,) = rope_store(step, attrs, q, k, v, table, q_norm, k_norm, cache)
    return attention(step, attrs, rotated, cache, sinks)
