"""Multi-head latent attention (DeepSeek-AI 2024, DeepSeek-V2, 2.1), in its absorbed form.

A position is cached as [rotary key | latent], shared by all heads: keys and values are linear in
the latent, so a head's key matrix moves to its query and its value matrix behind the mix.

    q_h . k = q_rope_h . k_rope + (W_k_h^T q_nope_h) . latent      value_h = W_v_h latent

So attention is that of one KV head whose values are the last columns of its keys. It is the same
sum for one token and for a whole prompt, so prefill and decode share it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from zinc.core.errors import ModelError, UnsupportedError
from zinc.formats.gguf import GGUFFile
from zinc.models.parts.blocks import RopeTables
from zinc.models.parts.rope import Rope, rope_from
from zinc.models.parts.spec import MAX_HEADS, MAX_WIDTH, Attention, Metadata, ModelSpec
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph, KVState, Value, Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention(Attention):
    """Sizes before absorption: a query head is [nope | rotary], its value `v_dim` wide.

    `q_rank` 0: queries come straight from the hidden rows. The sizes of the base class are those
    of the cache: one KV head of [rotary | latent].
    """

    q_rank: int
    nope_dim: int
    v_dim: int

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
    """Reads `{arch}.attention.*`.

    `key_length_mla` is the width of a query head; files from before this key have it, and no
    latent, in `key_length`. Raises ModelError for sizes that contradict each other and
    UnsupportedError for attention whose temperature depends on the position.
    """
    m = Metadata(file, arch)
    if m.optional_positive("attention.temperature_scale"):
        raise UnsupportedError(
            f"cannot load {file.path}",
            f"zinc has no code for {arch}.attention.temperature_scale",
            "use another model, or a newer zinc",
        )
    rank = m.size("attention.kv_lora_rank", MAX_WIDTH)
    query_dim = m.optional_size("attention.key_length_mla", MAX_WIDTH)
    v_dim = m.optional_size("attention.value_length_mla", MAX_WIDTH)
    query_dim = query_dim or m.size("attention.key_length", MAX_WIDTH)
    v_dim = v_dim or m.size("attention.value_length", MAX_WIDTH)
    rope_dim = m.size("rope.dimension_count", MAX_WIDTH)
    if rope_dim >= query_dim:
        raise ModelError(
            f"cannot load {file.path}",
            f"query heads of {query_dim} dimensions leave nothing beside {rope_dim} that rotate",
            "the file is damaged; download or convert it again",
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
        q_rank=m.optional_size("attention.q_lora_rank", MAX_WIDTH),
        nope_dim=query_dim - rope_dim,
        v_dim=v_dim,
    )


def _temperature(m: Metadata, rope: Rope, scale: float) -> tuple[float, Rope]:
    """The scale of scores, and the RoPE, under YaRN with `mscale_all_dim`.

    The temperature 1 + 0.1 mscale ln(factor) of YaRN then applies to all dimensions of query and
    key, so it goes into the scale, squared, and out of cosines and sines. GGUF stores
    0.1 mscale_all_dim; `mscale` itself is equal to it in the published models.
    """
    log_multiplier = m.optional_positive("rope.scaling.yarn_log_multiplier")
    if rope.scaling != "yarn" or not log_multiplier:
        return scale, rope
    temperature = 1.0 + log_multiplier * math.log(rope.factor)
    # rope.scale is the attention factor of the file times the temperature that moves away.
    unscaled = replace(rope, attention_factor=rope.attention_factor**2 / rope.scale)
    return scale * temperature**2, unscaled


def latent_attention(
    g: Graph, spec: ModelSpec, a: Attention, w: Weights, ropes: RopeTables, x: Value, name: str
) -> Value:
    """Latent attention of normalised rows x [tokens, hidden] -> [tokens, hidden]."""
    assert isinstance(a, LatentAttention)
    assert a.rope is not None
    q_nope, q_rope = queries(g, spec, a, w, x)
    kv = g.linear(x, w.matrix("attn_kv_a_mqa", a.head_dim, spec.hidden))
    latent = g.rms_norm(g.columns(kv, 0, a.rank), w.vector("attn_kv_a_norm", a.rank), eps=spec.eps)
    w_key, w_value = absorbed(a, w)
    q = g.concat_heads(q_rope, g.head_linear(q_nope, w_key, a.n_heads), n_heads=a.n_heads)
    k = g.concat_heads(g.columns(kv, a.rank, a.rope_dim), latent, n_heads=1)
    table = ropes.get(g, a.rope)
    q = g.rope(q, table, head_dim=a.head_dim, neox=a.rope.neox)
    k = g.rope(k, table, head_dim=a.head_dim, neox=a.rope.neox)
    state = KVState(name, 1, a.head_dim, a.rank, a.window, v_from_k=True)
    g.kv_store(k, None, state)
    mixed = g.attention(q, state, scale=a.scale)
    o = g.head_linear(mixed, w_value, a.n_heads)
    return g.linear(o, w.matrix("attn_output", spec.hidden, a.n_heads * a.v_dim))


def queries(
    g: Graph, spec: ModelSpec, a: LatentAttention, w: Weights, x: Value
) -> tuple[Value, Value]:
    """The parts of all query heads that do not rotate, and those that do."""
    name, cols = "attn_q", spec.hidden
    if a.q_rank:
        x = g.linear(x, w.matrix("attn_q_a", a.q_rank, spec.hidden))
        x = g.rms_norm(x, w.vector("attn_q_a_norm", a.q_rank), eps=spec.eps)
        name, cols = "attn_q_b", a.q_rank
    shape = (a.n_heads * a.query_dim, cols)
    w.matrix(name, *shape)  # before its rows are listed: the file is not trusted until then
    nope, rope = _split(a.n_heads, a.nope_dim, a.rope_dim)
    return (
        g.linear(x, w.pick(name, shape, nope, "nope")),
        g.linear(x, w.pick(name, shape, rope, "rope")),
    )


def absorbed(a: LatentAttention, w: Weights) -> tuple[Weight, Weight]:
    """Each head's matrix from nope queries to the latent, and the one from the latent to values.

    Older files have both of a head in attn_kv_b, where the keys' matrix lies the other way round;
    some have all three tensors.
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
    """Rows of the first and of the second part of every head, for heads of [first | second]."""
    size = first + second
    heads = range(0, n_heads * size, size)
    return (
        tuple(h + i for h in heads for i in range(first)),
        tuple(h + i for h in heads for i in range(first, size)),
    )
