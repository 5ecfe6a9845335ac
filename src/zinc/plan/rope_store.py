"""Fusion of per-head norm, RoPE and the cache write of an attention op into one `rope_store`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from zinc.core.dataclass import dataclass
from zinc.ops.node import Node
from zinc.ops.registry import OPS
from zinc.ops.values import Input, KVState, Value
from zinc.plan.passes import producers, uses
from zinc.plan.split import TRANSFERS


def fuse_rope_store(nodes: Sequence[Node], output: Value | None, ids: Iterator[int]) -> list[Node]:
    """Fuse per-head norm, RoPE and the cache write of each op that reads a cache into one node.

    A RoPE that cannot be fused becomes such a node by itself: one before a norm, or those of
    queries and keys with different tables. New values take their ids from `ids`.
    """
    matcher = _HeadMatcher(producers(nodes), uses(nodes, output))
    stores: dict[KVState, Node] = {}  # the last kv_store of each state that no node has read yet
    replaced: dict[int, list[Node]] = {}  # what each fused node becomes, by id(node)
    for node in nodes:
        if node.op == "kv_store":
            stores[_cache(node)] = node
        if node.op in TRANSFERS or not OPS[node.op].reads_cache:
            continue
        store = stores.pop(_cache(node), None)  # None if the layer reads another layer's cache
        q, k, v = matcher.operands(node, store)
        fused = [n for part in (q, k, v) if part is not None for n in part.nodes]
        replaced |= {id(n): [] for n in fused}
        if store is not None:
            replaced[id(store)] = []
        replaced[id(node)] = _with_rope_store(node, q, k, v, ids)
    result = [x for node in nodes for x in replaced.get(id(node), [node])]
    return [_rope_alone(node) if node.op == "rope" else node for node in result]


@dataclass(frozen=True, slots=True)
class _Heads:
    """The rows of q, k or v, and the nodes that apply norm and RoPE to their heads, if any."""

    rows: Value
    norm: Node | None = None
    rope: Node | None = None

    @property
    def nodes(self) -> list[Node]:
        return [node for node in (self.norm, self.rope) if node is not None]

    @property
    def table(self) -> Input:
        return self.rope.input("table") if self.rope else None

    @property
    def norm_weight(self) -> Input:
        return self.norm.input("weight") if self.norm else None


@dataclass(frozen=True, slots=True)
class _HeadMatcher:
    """A matcher of the norms and RoPEs that prepare the heads of an attention op.

    made: the node that makes each value, by id. used: how often each value is read. A node is
    matched only if nothing else reads its output.
    """

    made: Mapping[int, Node]
    used: Mapping[int, int]

    def operands(
        self, reader: Node, store: Node | None
    ) -> tuple[_Heads, _Heads | None, _Heads | None]:
        """Return q, k and v of an op that reads a cache. store: the kv_store of k and v, if any."""
        head_dim = _cache(reader).head_dim
        q = self._heads(reader.rows("q"), head_dim)
        if store is None:
            return q, None, None
        k, v = self._heads(store.rows("k"), head_dim), self._values(store.input("v"))
        if q.table != k.table:
            return _Heads(reader.rows("q")), _Heads(store.rows("k")), v
        return q, k, v

    def _heads(self, value: Value, head_dim: int) -> _Heads:
        """Return the rows of q or k."""
        turned, rope = self._match(value, "rope")
        rows, norm = self._match(turned, "rms_norm")
        # A norm of the whole row is not one of each head, and rope_store needs a weight.
        if norm is None or int(norm.attrs["group"]) != head_dim or norm.input("weight") is None:
            return _Heads(turned, rope=rope)
        return _Heads(rows, norm, rope)

    def _values(self, value: Input) -> _Heads | None:
        """Return the rows of v. A norm is part of the result only if it has no weight."""
        if not isinstance(value, Value):
            return None
        rows, norm = self._match(value, "rms_norm")
        if norm is None or norm.input("weight") is not None:
            return _Heads(value)
        return _Heads(rows, norm)

    def _match(self, value: Value, op: str) -> tuple[Value, Node | None]:
        """Return the input of the `op` node that makes `value`, and the node if it can be fused."""
        node = self.made.get(value.id)
        if node is None or node.op != op or self.used[value.id] != 1:
            return value, None
        return node.rows("x"), node


def _with_rope_store(
    reader: Node, q: _Heads, k: _Heads | None, v: _Heads | None, ids: Iterator[int]
) -> list[Node]:
    """Return an op that reads a cache, after the rope_store of its operands."""
    store = _rope_store(reader, _cache(reader), q, k, v)
    if not q.nodes:  # rope_store passes the queries on as they are
        store = replace(store, outputs=(replace(q.rows, id=next(ids)),))
    return [store, reader.with_input("q", store.outputs[0])]


def _cache(node: Node) -> KVState:
    """Return the KV cache that a node reads or a kv_store writes."""
    found = node.input("cache")
    assert isinstance(found, KVState)
    return found


def _rope_alone(node: Node) -> Node:
    """Return the rope_store that rotates the heads of a rope node and stores nothing."""
    (out,), head_dim = node.outputs, int(node.attrs["head_dim"])
    attrs = {
        "n_heads": out.cols // head_dim,
        "n_kv_heads": 1,
        "head_dim": head_dim,
        "rope_dims": int(node.attrs["rope_dims"]),
        "neox": int(node.attrs["neox"]),
        "eps": 0.0,
        "v_norm": 0,
    }
    inputs = (node.rows("x"), None, None, node.rows("table"), None, None, None)
    return replace(node, op="rope_store", inputs=inputs, attrs=MappingProxyType(attrs))


def _rope_store(
    reader: Node, state: KVState, q: _Heads, k: _Heads | None, v: _Heads | None
) -> Node:
    rope = q.rope or (k.rope if k else None)
    norms = [part.norm for part in (q, k, v) if part is not None and part.norm is not None]
    rotated = reader.rows("q")
    inputs = (
        q.rows,
        k.rows if k else None,
        v.rows if v else None,
        rope.input("table") if rope else None,
        q.norm_weight,
        k.norm_weight if k else None,
        state if k else None,
    )
    attrs = {
        "n_heads": rotated.cols // state.head_dim,
        "n_kv_heads": state.n_heads,
        "head_dim": state.head_dim,
        "rope_dims": int(rope.attrs["rope_dims"]) if rope else 0,
        "neox": int(rope.attrs["neox"]) if rope else 0,
        "eps": float(norms[0].attrs["eps"]) if norms else 0.0,
        "v_norm": int(v is not None and v.norm is not None),
    }
    return Node("rope_store", inputs, (rotated,), MappingProxyType(attrs), reader.label)
