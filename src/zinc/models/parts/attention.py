"""Grouped-query attention over the KV cache, causal or over a whole text."""

from __future__ import annotations

from zinc.models.parts.layer import Layer
from zinc.models.parts.rope import Rope
from zinc.models.parts.spec import Norm
from zinc.ops.values import Constant, KVState, Value


def attention(layer: Layer, x: Value) -> Value:
    """Return grouped-query attention over normalised rows x, [tokens, hidden] to [tokens, hidden].

    A layer with `kv_layer` projects queries only and reads the cache of that layer.
    """
    g, spec, w, a = layer.g, layer.spec, layer.w, layer.attention
    # All layers of an encoder share one cache, because no step reads keys of another step.
    cache_name = layer.name if spec.causal else "text"
    gate: Value | None = None
    if a.gated and not a.gate_apart:
        q, gate = _gated_query(layer, x)
    else:
        q = _projection(layer, x, "attn_q")
        if a.gated:
            gate = layer.linear(x, "attn_gate", a.n_heads * (1 if a.head_gate else a.head_dim_v))
    if a.kv_layer is None:
        k = _projection(layer, x, "attn_k")
        v = k if a.k_is_v else _projection(layer, x, "attn_v")
        if a.v_norm:
            v = g.rms_norm(v, None, eps=spec.eps, group=a.head_dim_v)
    else:
        w.ignore("attn_k", "attn_v", "attn_k_norm")
        k, v = None, None
        cache_name = f"blk.{a.kv_layer}"
    q = _prepared(layer, q, "attn_q_norm", a.query_rope or a.rope)
    if k is not None:
        k = _prepared(layer, k, "attn_k_norm", a.rope)
    # The cache of an encoder holds a whole text, also for layers with a window.
    kept = a.window if spec.causal else 0
    state = KVState(cache_name, a.n_kv_heads, a.head_dim, a.head_dim_v, kept)
    if k is not None and v is not None:
        g.kv_store(k, v, state)
    sinks = w.vector("attn_sinks", a.n_heads) if a.sinks else None
    o = g.attention(
        q,
        state,
        sinks,
        scale=a.scale,
        softcap=a.softcap,
        causal=spec.causal,
        window=a.window,
        chunked=a.chunked,
        slopes=alibi_slopes(a.n_heads) if a.alibi else None,
    )
    if a.v_scale != 1.0:  # the output is a mean of the values, and shorter than all of them
        o = g.scale(o, a.v_scale)
    if gate is not None:
        o = g.gate(o, gate, softplus=a.softplus_gate)
    return layer.linear(o, "attn_output", spec.hidden, a.n_heads * a.head_dim_v)


def alibi_slopes(n_heads: int) -> Constant:
    """Return the slope of each head for ALiBi (Press et al. 2022).

    Those of 2^k heads are a geometric sequence that ends with 2^-8. Further heads take every second
    slope of twice as many heads.
    """
    power = 1 << (n_heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    more = [2.0 ** (-4.0 * (2 * i + 1) / power) for i in range(n_heads - power)]
    return Constant(f"alibi_{n_heads}", tuple(slopes + more))


def _prepared(layer: Layer, x: Value, norm: str, rope: Rope | None) -> Value:
    """Return queries or keys x after norm and RoPE, in the order of the layer.

    norm: name of the weight.
    """
    a = layer.attention
    if a.qk_norm and not a.late_norm:
        x = _normalised(layer, x, norm)
    if rope is not None:
        table = layer.ropes.get(layer.g, rope)
        x = layer.g.rope(x, table, head_dim=a.head_dim, neox=rope.neox)
    return _normalised(layer, x, norm) if a.qk_norm and a.late_norm else x


def _normalised(layer: Layer, x: Value, name: str) -> Value:
    """Return the norm of each head of x, or of each row if the layer normalises heads jointly.

    The weight `name` of an RMS norm has an element for each normalised column, that of a layer norm
    for each column of the row, [heads, head_dim].
    """
    if layer.spec.norm is not Norm.RMS:
        head_dim = layer.attention.head_dim
        weight = layer.w.flat(name, (x.cols // head_dim, head_dim))
        return layer.g.layer_norm(x, weight, None, eps=layer.spec.eps, group=head_dim)
    a = layer.attention
    group = x.cols if a.joint_norm else a.head_dim
    if a.plain_norm:
        ones = Constant(f"ones_{group}", (1.0,) * group)
        return layer.g.rms_norm(x, ones, eps=layer.spec.eps, group=group)
    return layer.g.rms_norm(x, layer.w.vector(name, group), eps=layer.spec.eps, group=group)


def _projection(layer: Layer, x: Value, name: str) -> Value:
    """Return rows x times attn_q, attn_k or attn_v.

    Some files stack the three in this order as attn_qkv, or the parts of each head in turn.
    """
    g, w, a = layer.g, layer.w, layer.attention
    sizes = {"attn_q": a.q_cols, "attn_k": a.k_cols, "attn_v": a.v_cols}
    if not w.has("attn_qkv"):
        return layer.linear(x, name, sizes[name])
    first = sum(list(sizes.values())[: list(sizes).index(name)])
    total, n = sum(sizes.values()), sizes[name]
    if a.stacked_heads:
        w.refuse("attn_qkv", "bias")
        starts = range(first // a.n_heads, total, total // a.n_heads)
        rows = tuple(row for start in starts for row in range(start, start + n // a.n_heads))
        return g.linear(x, w.pick("attn_qkv", (total, layer.spec.hidden), rows, name))
    weight = w.rows("attn_qkv", (total, layer.spec.hidden), first, n)
    return g.linear(x, weight, w.bias_part("attn_qkv", total, first, n))


def _gated_query(layer: Layer, x: Value) -> tuple[Value, Value]:
    """Return queries and gates, each [tokens, heads * head_dim].

    For each head, attn_q holds the rows of the query and then those of the gate.
    """
    g, w, a = layer.g, layer.w, layer.attention
    shape = (2 * a.q_cols, layer.spec.hidden)
    starts = range(0, 2 * a.q_cols, 2 * a.head_dim)
    query = tuple(row for start in starts for row in range(start, start + a.head_dim))
    gate = tuple(row + a.head_dim for row in query)
    return (
        g.linear(x, w.pick("attn_q", shape, query, "query")),
        g.linear(x, w.pick("attn_q", shape, gate, "gate")),
    )
