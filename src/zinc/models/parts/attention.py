"""Grouped-query attention over the KV cache, causal or over a whole text."""

from __future__ import annotations

from zinc.models.parts.layer import Layer
from zinc.models.parts.rope import Rope
from zinc.models.parts.spec import Norm, QKNorm
from zinc.ops.values import Constant, KVState, Value


def attention(layer: Layer, x: Value) -> Value:
    """Return grouped-query attention over normalised rows x, [tokens, hidden] to [tokens, hidden].

    A layer with `kv_layer` projects queries only and reads the cache of that layer.
    """
    g, spec, w, a = layer.g, layer.spec, layer.w, layer.attention
    # All layers of an encoder share one cache, because no step reads keys of another step.
    cache_name = layer.name if spec.causal else "text"
    q, gate = _query_and_gate(layer, x)
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
    if a.gate is not None and gate is not None:
        o = g.gate(o, gate, softplus=a.gate.softplus)
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
    if a.qk_norm is not None and not a.qk_norm.after_rope:
        x = _normalised(layer, a.qk_norm, x, norm)
    if rope is not None:
        table = layer.ropes.get(layer.g, rope)
        x = layer.g.rope(x, table, head_dim=a.head_dim, neox=rope.neox)
    if a.qk_norm is not None and a.qk_norm.after_rope:
        x = _normalised(layer, a.qk_norm, x, norm)
    return x


def _normalised(layer: Layer, norm: QKNorm, x: Value, name: str) -> Value:
    """Return queries or keys x after their norm.

    The weight `name` of an RMS norm has an element for each normalised column, that of a layer norm
    for each column of the row, [heads, head_dim].
    """
    g, eps, head_dim = layer.g, layer.spec.eps, layer.attention.head_dim
    if layer.spec.norm is not Norm.RMS:
        weight = layer.w.flat(name, (x.cols // head_dim, head_dim))
        return g.layer_norm(x, weight, None, eps=eps, group=head_dim)
    group = x.cols if norm.joint else head_dim
    if not norm.weighted:
        return g.rms_norm(x, Constant(f"ones_{group}", (1.0,) * group), eps=eps, group=group)
    return g.rms_norm(x, layer.w.vector(name, group), eps=eps, group=group)


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


def _query_and_gate(layer: Layer, x: Value) -> tuple[Value, Value | None]:
    """Return queries [tokens, heads * head_dim], and the gates of the output if there are any.

    Gates are [tokens, heads * head_dim_v], or [tokens, heads] if heads have one each.
    """
    g, w, a = layer.g, layer.w, layer.attention
    if a.gate is None or not a.gate.in_query:
        q = _projection(layer, x, "attn_q")
        if a.gate is None:
            return q, None
        return q, layer.linear(x, "attn_gate", a.n_heads * (1 if a.gate.per_head else a.head_dim_v))
    # For each head, attn_q holds the rows of the query and then those of the gate.
    shape = (2 * a.q_cols, layer.spec.hidden)
    starts = range(0, 2 * a.q_cols, 2 * a.head_dim)
    query = tuple(row for start in starts for row in range(start, start + a.head_dim))
    gate = tuple(row + a.head_dim for row in query)
    return (
        g.linear(x, w.pick("attn_q", shape, query, "query")),
        g.linear(x, w.pick("attn_q", shape, gate, "gate")),
    )
