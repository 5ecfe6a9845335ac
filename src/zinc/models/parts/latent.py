"""Multi-head latent attention (DeepSeek-AI 2024, DeepSeek-V2, 2.1), in its absorbed form.

A position is cached as [rotary key | latent], shared by all heads. Keys and values are linear in
the latent, so the key matrix of a head is applied to its query, and the value matrix to the output
of attention:

    q_h . k = q_rope_h . k_rope + (W_k_h^T q_nope_h) . latent      value_h = W_v_h latent

The result is attention with one KV head, whose values are the last columns of its keys. Prefill and
decode use the same form.
"""

from __future__ import annotations

import math
from dataclasses import replace

from zinc.core.dataclass import dataclass
from zinc.formats.gguf import GGUFFile
from zinc.models.parts.errors import damaged, unsupported
from zinc.models.parts.indexer import Indexer, selected_keys
from zinc.models.parts.layer import Layer
from zinc.models.parts.metadata import MAX_CONTEXT, MAX_HEADS, MAX_WIDTH, Metadata
from zinc.models.parts.rope import Rope, rope_from
from zinc.models.parts.spec import Attention
from zinc.models.parts.weights import Weights
from zinc.ops.values import KVState, Value, Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention(Attention):
    """Sizes of latent attention; a query head is [nope | rotary], a value `v_dim` wide.

    The fields of the base class describe the cache: one KV head of [rotary | latent]. Without a
    RoPE, the rotary part is not rotated. A gate is one number for each head. q_rank: rank of the
    query projection, 0 if queries come straight from the hidden rows. index: the indexer that
    selects the `top_k` positions of a query, if there is one.
    """

    q_rank: int
    nope_dim: int
    v_dim: int
    index: Indexer | None = None

    @property
    def rank(self) -> int:
        """Width of the latent."""
        return self.head_dim_v

    @property
    def rope_dim(self) -> int:
        return self.head_dim - self.rank

    @property
    def query_dim(self) -> int:
        return self.nope_dim + self.rope_dim


def latent_from(file: GGUFFile, arch: str) -> LatentAttention:
    """Return the latent attention that the metadata `{arch}.attention.*` describes.

    `key_length_mla` is the width of a query head; older files state it in `key_length`. Raises
    ModelError for sizes that contradict each other.
    """
    m = Metadata(file, arch)
    rank = m.size("attention.kv_lora_rank", MAX_WIDTH)
    query_dim = m.optional_size("attention.key_length_mla", MAX_WIDTH)
    v_dim = m.optional_size("attention.value_length_mla", MAX_WIDTH)
    query_dim = query_dim or m.size("attention.key_length", MAX_WIDTH)
    v_dim = v_dim or m.size("attention.value_length", MAX_WIDTH)
    rope_dim = m.size("rope.dimension_count", MAX_WIDTH)
    if rope_dim >= query_dim:
        raise damaged(
            file,
            f"{rope_dim} rotary dimensions leave none of the {query_dim} of a query head unrotated",
        )
    rope = rope_from(file, arch, query_dim, neox=False)
    scale, rope = _temperature(m, rope, query_dim**-0.5)
    return LatentAttention(
        n_heads=m.size("attention.head_count", MAX_HEADS),
        n_kv_heads=1,
        head_dim=rope_dim + rank,
        head_dim_v=rank,
        scale=scale,
        rope=rope,
        query_rope=_growing(m, rope, rank),
        q_rank=m.optional_size("attention.q_lora_rank", MAX_WIDTH),
        nope_dim=query_dim - rope_dim,
        v_dim=v_dim,
    )


def _temperature(m: Metadata, rope: Rope, scale: float) -> tuple[float, Rope]:
    """Return the scale of attention scores and the RoPE for YaRN with `mscale_all_dim`.

    There, the YaRN temperature 1 + 0.1 mscale ln(factor) applies to all dimensions of query and
    key. Its square therefore multiplies the scale of scores, and cosines and sines have no
    temperature. GGUF stores 0.1 mscale_all_dim; `mscale` is equal to mscale_all_dim in the
    published models.
    """
    log_multiplier = m.optional_positive("rope.scaling.yarn_log_multiplier")
    if rope.scaling != "yarn" or not log_multiplier:
        return scale, rope
    temperature = 1.0 + log_multiplier * math.log(rope.factor)
    return scale * temperature**2, rope.without_temperature()


def _growing(m: Metadata, rope: Rope, rank: int) -> Rope | None:
    """Return the RoPE of queries that grow with the logarithm of their position, else None.

    All dimensions of a query grow, including those of its latent part of width `rank`.
    """
    growth = m.optional_positive("attention.temperature_scale")
    if not growth:
        return None
    original = m.size("rope.scaling.original_context_length", MAX_CONTEXT)
    if m.size("attention.temperature_length", MAX_CONTEXT, default=original) != original:
        raise unsupported(m.file, f"its queries do not grow every {original:,} positions")
    if rope.scale != 1.0:
        raise unsupported(
            m.file, "its queries grow with the position, and its RoPE scales them too"
        )
    return replace(rope, log_scale=growth, unrotated=rank)


def latent_attention(layer: Layer, x: Value) -> Value:
    """Return latent attention over normalised rows x, [tokens, hidden] to [tokens, hidden]."""
    g, spec, w, a = layer.g, layer.spec, layer.w, layer.attention
    assert isinstance(a, LatentAttention)
    compressed = _compressed(layer, a, x)
    q_nope, q_rope = _queries(layer, a, compressed)
    kv = g.linear(x, w.matrix("attn_kv_a_mqa", a.head_dim, spec.hidden))
    latent = g.rms_norm(g.columns(kv, 0, a.rank), w.vector("attn_kv_a_norm", a.rank), eps=spec.eps)
    w_key, w_value = _absorbed(a, w)
    q = g.concat_heads(q_rope, g.head_linear(q_nope, w_key, a.n_heads), n_heads=a.n_heads)
    k = g.concat_heads(g.columns(kv, a.rank, a.rope_dim), latent, n_heads=1)
    if a.rope is not None:
        table = layer.ropes.get(g, a.rope)
        grown = layer.ropes.get(g, a.query_rope) if a.query_rope else table
        q = g.rope(q, grown, head_dim=a.head_dim, neox=a.rope.neox)
        k = g.rope(k, table, head_dim=a.head_dim, neox=a.rope.neox)
    state = KVState(layer.name, 1, a.head_dim, a.rank, a.window, v_from_k=True)
    g.kv_store(k, None, state)
    keys = selected_keys(layer, a.index, compressed, x) if a.index else None
    mixed = g.attention(q, state, scale=a.scale, keys=keys)
    o = g.head_linear(mixed, w_value, a.n_heads)
    if a.gate is not None:
        o = g.gate(o, g.linear(x, w.matrix("attn_gate", a.n_heads, spec.hidden)))
    return g.linear(o, w.matrix("attn_output", spec.hidden, a.n_heads * a.v_dim))


def _compressed(layer: Layer, a: LatentAttention, x: Value) -> Value:
    """Return the normalised rows [tokens, q_rank] that queries are made of, or x if q_rank is 0."""
    if not a.q_rank:
        return x
    g, spec, w = layer.g, layer.spec, layer.w
    x = g.linear(x, w.matrix("attn_q_a", a.q_rank, spec.hidden))
    return g.rms_norm(x, w.vector("attn_q_a_norm", a.q_rank), eps=spec.eps)


def _queries(layer: Layer, a: LatentAttention, x: Value) -> tuple[Value, Value]:
    """Return the parts of all query heads without and with rotation: (nope, rotary)."""
    g, w = layer.g, layer.w
    name, cols = ("attn_q_b", a.q_rank) if a.q_rank else ("attn_q", layer.spec.hidden)
    shape = (a.n_heads * a.query_dim, cols)
    w.matrix(name, *shape)  # check the shape before listing rows: sizes from a file may be huge
    nope, rope = _split(a.n_heads, a.nope_dim, a.rope_dim)
    return (
        g.linear(x, w.pick(name, shape, nope, "nope")),
        g.linear(x, w.pick(name, shape, rope, "rope")),
    )


def _absorbed(a: LatentAttention, w: Weights) -> tuple[Weight, Weight]:
    """Return each head's matrix from nope queries to the latent, and from the latent to values.

    Older files stack both in attn_kv_b, with the keys' matrix transposed; some files have all three
    tensors.
    """
    shape = (a.n_heads * (a.nope_dim + a.v_dim), a.rank)
    if w.has("attn_kv_b"):
        w.matrix("attn_kv_b", *shape)
    if w.has("attn_k_b") or not w.has("attn_kv_b"):
        return (
            w.matrix("attn_k_b", a.rank, a.nope_dim, a.n_heads),
            w.matrix("attn_v_b", a.v_dim, a.rank, a.n_heads),
        )
    keys, values = _split(a.n_heads, a.nope_dim, a.v_dim)
    return (
        w.transposed("attn_kv_b", shape, keys, a.n_heads),
        w.pick("attn_kv_b", shape, values, "values"),
    )


def _split(n_heads: int, first: int, second: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the rows of both parts of every head, where a head is [first | second] rows."""
    size = first + second
    heads = range(0, n_heads * size, size)
    return (
        tuple(h + i for h in heads for i in range(first)),
        tuple(h + i for h in heads for i in range(first, size)),
    )
