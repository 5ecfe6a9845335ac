"""Blocks that model files are made of. Each adds nodes to the graph and returns a value."""

from __future__ import annotations

from dataclasses import dataclass, field

from zinc.models.parts.rope import Rope
from zinc.models.parts.spec import Attention, ModelSpec
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph, KVState, Value


@dataclass(slots=True)
class RopeTables:
    """One table of cosines and sines for each distinct RoPE of a model."""

    tables: dict[Rope, Value] = field(default_factory=dict)

    def get(self, g: Graph, rope: Rope) -> Value:
        if rope not in self.tables:
            self.tables[rope] = g.rope_table(rope.inverse_frequencies(), scale=rope.scale)
        return self.tables[rope]


def attention(
    g: Graph, spec: ModelSpec, a: Attention, w: Weights, ropes: RopeTables, x: Value, name: str
) -> Value:
    """Grouped-query attention of normalised rows x [tokens, hidden] -> [tokens, hidden].

    A layer with `kv_layer` projects queries only and reads the cache of that layer.
    """
    if a.gated:
        q, gate = gated_query(g, spec, a, w, x)
    else:
        q, gate = projection(g, spec, a, w, x, "attn_q"), None
    if a.kv_layer is None:
        k = projection(g, spec, a, w, x, "attn_k")
        v = k if a.k_is_v else projection(g, spec, a, w, x, "attn_v")
        if a.v_norm:
            v = g.rms_norm(v, None, eps=spec.eps, group=a.head_dim_v)
    else:
        k, v = None, None
        name = f"blk.{a.kv_layer}"
    if a.qk_norm:
        q = g.rms_norm(q, w.vector("attn_q_norm", a.head_dim), eps=spec.eps, group=a.head_dim)
        if k is not None:
            k = g.rms_norm(k, w.vector("attn_k_norm", a.head_dim), eps=spec.eps, group=a.head_dim)
    if a.rope is not None:
        table = ropes.get(g, a.rope)
        q = g.rope(q, table, head_dim=a.head_dim, neox=a.rope.neox)
        if k is not None:
            k = g.rope(k, table, head_dim=a.head_dim, neox=a.rope.neox)
    state = KVState(name, a.n_kv_heads, a.head_dim, a.head_dim_v, a.window)
    if k is not None and v is not None:
        g.kv_store(k, v, state)
    sinks = w.vector("attn_sinks", a.n_heads) if a.sinks else None
    o = g.attention(q, state, sinks, scale=a.scale, softcap=a.softcap)
    if gate is not None:
        o = g.gate(o, gate)
    o_cols = a.n_heads * a.head_dim_v
    w_out = w.matrix("attn_output", spec.hidden, o_cols)
    return g.linear(o, w_out, w.bias("attn_output", spec.hidden))


def projection(g: Graph, spec: ModelSpec, a: Attention, w: Weights, x: Value, name: str) -> Value:
    """One of attn_q, attn_k and attn_v, which some files stack in this order as attn_qkv."""
    sizes = {"attn_q": a.q_cols, "attn_k": a.k_cols, "attn_v": a.v_cols}
    cols = sizes[name]
    if not w.has("attn_qkv"):
        return g.linear(x, w.matrix(name, cols, spec.hidden), w.bias(name, cols))
    w.refuse("attn_qkv", "bias")
    first = sum(list(sizes.values())[: list(sizes).index(name)])
    return g.linear(x, w.rows("attn_qkv", (sum(sizes.values()), spec.hidden), first, cols))


def gated_query(
    g: Graph, spec: ModelSpec, a: Attention, w: Weights, x: Value
) -> tuple[Value, Value]:
    """Queries and gates: attn_q has for each head the rows of its query, then those of its gate."""
    shape = (2 * a.q_cols, spec.hidden)
    starts = range(0, 2 * a.q_cols, 2 * a.head_dim)
    query = tuple(row for at in starts for row in range(at, at + a.head_dim))
    gate = tuple(row + a.head_dim for row in query)
    return (
        g.linear(x, w.pick("attn_q", shape, query, "query")),
        g.linear(x, w.pick("attn_q", shape, gate, "gate")),
    )


def gated_mlp(g: Graph, spec: ModelSpec, w: Weights, x: Value, ffn: int | None = None) -> Value:
    """down(act(gate(x)) * up(x)) for rows x [tokens, hidden]; `ffn` is the width of the layer.

    Without ffn_gate, ffn_up holds the rows of the gate and then those of up.
    """
    ffn = ffn or spec.ffn
    if w.stacks("ffn_up", 2 * ffn) and not w.has("ffn_gate"):
        w.refuse("ffn_up", "bias")
        gate = g.linear(x, w.rows("ffn_up", (2 * ffn, spec.hidden), 0, ffn))
        up = g.linear(x, w.rows("ffn_up", (2 * ffn, spec.hidden), ffn, ffn))
    else:
        gate = g.linear(x, w.matrix("ffn_gate", ffn, spec.hidden), w.bias("ffn_gate", ffn))
        up = g.linear(x, w.matrix("ffn_up", ffn, spec.hidden), w.bias("ffn_up", ffn))
    h = g.glu(gate, up, act=spec.activation)
    return g.linear(h, w.matrix("ffn_down", spec.hidden, ffn), w.bias("ffn_down", spec.hidden))


def dense_decoder(g: Graph, spec: ModelSpec, w: Weights) -> None:
    """Pre-norm decoder: x += attention(norm(x)); x += mlp(norm(x)) for each layer, then the head.

    With `spec.post_norms`, what is added goes through a norm of its own first.
    """
    ropes = RopeTables()
    g.at("embed")
    x = g.embed(w.matrix("token_embd", spec.vocab, spec.hidden), scale=spec.embed_scale)
    for i, a in enumerate(spec.attention):
        g.at(f"blk.{i}")
        layer = w.layer(i)
        h = g.rms_norm(x, layer.vector("attn_norm", spec.hidden), eps=spec.eps)
        h = attention(g, spec, a, layer, ropes, h, f"blk.{i}")
        if spec.post_norms:
            h = g.rms_norm(h, layer.vector("post_attention_norm", spec.hidden), eps=spec.eps)
        x = g.add(h, x)
        h = g.rms_norm(x, layer.vector("ffn_norm", spec.hidden), eps=spec.eps)
        h = gated_mlp(g, spec, layer, h)
        if spec.post_norms:
            h = g.rms_norm(h, layer.vector("post_ffw_norm", spec.hidden), eps=spec.eps)
        x = g.add(h, x)
    lm_head(g, spec, w, x)


def lm_head(g: Graph, spec: ModelSpec, w: Weights, x: Value) -> None:
    """Logits [outputs, vocab] of the rows the step asks for; the head may be the embedding."""
    g.at("head")
    x = g.rms_norm(g.select_rows(x), w.vector("output_norm", spec.hidden), eps=spec.eps)
    name = "output" if w.has("output") else "token_embd"
    logits = g.linear(x, w.matrix(name, spec.vocab, spec.hidden), w.bias("output", spec.vocab))
    g.output = g.softcap(logits, spec.logit_softcap) if spec.logit_softcap else logits
