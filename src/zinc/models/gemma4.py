"""Gemma 4, text: dense (31B), with experts beside the dense MLP (26B-A4B), and with per-layer input
embeddings and a tail of layers that share KV (E2B, E4B).

Sliding and global layers have their own head sizes, KV heads and RoPE; global RoPE divides its
frequencies by rope_freqs, which leaves most dimensions unrotated. Scores are not scaled, and value
heads are normalised without weight. Norm weights hold all there is to multiply by.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from zinc.core.errors import ModelError
from zinc.formats.gguf import GGUFFile
from zinc.models.parts.blocks import RopeTables, attention, gated_mlp, lm_head
from zinc.models.parts.rope import rope_from, sliding_rope
from zinc.models.parts.spec import (
    MAX_HEADS,
    MAX_LAYERS,
    MAX_WIDTH,
    Attention,
    Metadata,
    ModelSpec,
    vocab_size,
)
from zinc.models.parts.weights import Weights
from zinc.ops.elementwise import GELU
from zinc.ops.graph import Graph, Value
from zinc.ops.moe import SOFTMAX


@dataclass(frozen=True, slots=True)
class Gemma4Spec(ModelSpec):
    """`layer_ffn`: feed-forward width of each layer; `per_layer`: width of the inputs that every
    layer gets from the token ids, 0 without; the last three are 0 without experts."""

    layer_ffn: tuple[int, ...] = ()
    per_layer: int = 0
    n_experts: int = 0
    n_experts_used: int = 0
    expert_ffn: int = 0


def spec(file: GGUFFile) -> Gemma4Spec:
    m = Metadata(file, "gemma4")
    m.require("rope.freq_base")
    hidden = m.size("embedding_length", MAX_WIDTH)
    n_layers = m.size("block_count", MAX_LAYERS)
    ffn = m.sizes("feed_forward_length", MAX_WIDTH, n_layers)
    n_experts = m.optional_size("expert_count", MAX_WIDTH)
    return Gemma4Spec(
        arch="gemma4",
        n_layers=n_layers,
        hidden=hidden,
        ffn=max(ffn),
        vocab=vocab_size(file),
        context=m.size("context_length", 1 << 30),
        eps=m.positive("attention.layer_norm_rms_epsilon"),
        attention=attention_layers(file, m, n_layers),
        activation=GELU,
        embed_scale=sqrt(hidden),
        logit_softcap=m.optional_positive("final_logit_softcapping"),
        layer_ffn=tuple(ffn),
        per_layer=m.optional_size("embedding_length_per_layer_input", MAX_WIDTH),
        n_experts=n_experts,
        n_experts_used=m.size("expert_used_count", n_experts) if n_experts else 0,
        expert_ffn=m.size("expert_feed_forward_length", MAX_WIDTH) if n_experts else 0,
    )


def attention_layers(file: GGUFFile, m: Metadata, n_layers: int) -> tuple[Attention, ...]:
    """One entry a layer; the last `shared_kv_layers` read the cache of the last layer of their kind
    that has one."""
    n_heads = m.sizes("attention.head_count", MAX_HEADS, n_layers)
    n_kv_heads = m.sizes("attention.head_count_kv", MAX_HEADS, n_layers, default=n_heads[0])
    sliding = m.sliding_layers(n_layers, period=6)
    window = m.size("attention.sliding_window", 1 << 30)
    full_dim = m.size("attention.key_length", MAX_WIDTH)
    local_dim = m.size("attention.key_length_swa", MAX_WIDTH, default=full_dim)
    local_dims = m.size("rope.dimension_count_swa", MAX_WIDTH, default=local_dim)
    local_rope = sliding_rope(file, "gemma4", local_dims, local_dim)
    full_rope = rope_from(file, "gemma4", full_dim, neox=True)
    first_shared = n_layers - m.optional_size("attention.shared_kv_layers", n_layers)
    scale = m.positive("attention.scale", default=1.0)

    owner: dict[bool, int] = {}  # the last layer of each kind that has a cache of its own
    layers: list[Attention] = []
    for i, slides in enumerate(sliding):
        m.check_sharing(n_heads[i], n_kv_heads[i])
        if i < first_shared:
            owner[slides] = i
        elif slides not in owner or n_kv_heads[owner[slides]] != n_kv_heads[i]:
            raise ModelError(
                f"cannot load {file.path}",
                f"layer {i} shares the KV of an earlier layer, and no layer like it has one",
                "the file is damaged; download or convert it again",
            )
        head_dim = local_dim if slides else full_dim
        layers.append(
            Attention(
                n_heads=n_heads[i],
                n_kv_heads=n_kv_heads[i],
                head_dim=head_dim,
                head_dim_v=head_dim,
                scale=scale,
                rope=local_rope if slides else full_rope,
                window=window if slides else 0,
                qk_norm=True,
                k_is_v=not slides and not Weights(file).layer(i).has("attn_v"),
                v_norm=True,
                kv_layer=None if i < first_shared else owner[slides],
            )
        )
    return tuple(layers)


def build(g: Graph, spec: Gemma4Spec, w: Weights) -> None:
    if any(
        a.rope is not None and a.window == 0 and a.rope.divisors is None for a in spec.attention
    ):
        w.require("rope_freqs.weight")
    ropes = RopeTables()
    g.at("embed")
    x = g.embed(w.matrix("token_embd", spec.vocab, spec.hidden), scale=spec.embed_scale)
    inputs = layer_inputs(g, spec, w, x) if spec.per_layer else None
    for i, a in enumerate(spec.attention):
        g.at(f"blk.{i}")
        layer = w.layer(i)
        if a.kv_layer is not None:
            layer.ignore("attn_k", "attn_v", "attn_k_norm")
        if inputs is not None:
            given = g.columns(inputs, i * spec.per_layer, spec.per_layer)
        h = norm(g, spec, layer, x, "attn_norm")
        h = attention(g, spec, a, layer, ropes, h, f"blk.{i}")
        x = g.add(norm(g, spec, layer, h, "post_attention_norm"), x)
        h = gated_mlp(g, spec, layer, norm(g, spec, layer, x, "ffn_norm"), spec.layer_ffn[i])
        if spec.n_experts:
            h = norm(g, spec, layer, h, "post_ffw_norm_1")
            h = g.add(experts(g, spec, layer, x), h)
        x = g.add(norm(g, spec, layer, h, "post_ffw_norm"), x)
        if inputs is not None:
            x = g.add(layer_input(g, spec, layer, x, given), x)
        if layer.has("layer_output_scale"):
            x = g.scale(x, layer.scalar("layer_output_scale"))
    lm_head(g, spec, w, x)


def norm(g: Graph, spec: ModelSpec, w: Weights, x: Value, name: str) -> Value:
    return g.rms_norm(x, w.vector(name, spec.hidden), eps=spec.eps)


def experts(g: Graph, spec: Gemma4Spec, w: Weights, x: Value) -> Value:
    """The expert branch of rows x [tokens, hidden] before any norm. The router reads them through a
    norm of its own and divides by sqrt(hidden)."""
    n, ff, hidden = spec.n_experts, spec.expert_ffn, spec.hidden
    h = g.rms_norm(x, w.vector("ffn_gate_inp", hidden, "scale"), eps=spec.eps)
    logits = g.scale(g.linear(h, w.matrix("ffn_gate_inp", n, hidden)), hidden**-0.5)
    routes = g.route(logits, None, top_k=spec.n_experts_used, scoring=SOFTMAX, renormalise=True)
    order, starts = g.group_experts(routes, n_experts=n)
    h = norm(g, spec, w, x, "pre_ffw_norm_2")
    if w.has("ffn_gate_up_exps"):
        gate = w.rows("ffn_gate_up_exps", (n, 2 * ff, hidden), 0, ff)
        up = w.rows("ffn_gate_up_exps", (n, 2 * ff, hidden), ff, ff)
    else:
        gate = w.matrix("ffn_gate_exps", ff, hidden, planes=n)
        up = w.matrix("ffn_up_exps", ff, hidden, planes=n)
    h = g.moe_glu(h, order, starts, gate, up, act=GELU)
    down = w.matrix("ffn_down_exps", hidden, ff, planes=n)
    scale = w.optional_vector("ffn_down_exps", n, "scale")
    h = g.moe_down(h, order, starts, routes, down, scale=scale)
    return norm(g, spec, w, h, "post_ffw_norm_2")


def layer_inputs(g: Graph, spec: Gemma4Spec, w: Weights, x: Value) -> Value:
    """What each layer is given of each token, [tokens, n_layers * per_layer].

    (embedding * sqrt(per_layer) + norm(projection of x / sqrt(hidden))) / sqrt(2). Dividing what is
    normalised multiplies its eps.
    """
    cols = spec.n_layers * spec.per_layer
    table = w.matrix("per_layer_token_embd", spec.vocab, cols)
    own = g.embed(table, scale=sqrt(spec.per_layer))
    projected = g.rms_norm(
        g.linear(x, w.matrix("per_layer_model_proj", cols, spec.hidden)),
        w.vector("per_layer_proj_norm", spec.per_layer),
        eps=spec.eps * spec.hidden,
        group=spec.per_layer,
    )
    return g.scale(g.add(projected, own), sqrt(0.5))


def layer_input(g: Graph, spec: Gemma4Spec, w: Weights, x: Value, given: Value) -> Value:
    """norm(proj(gelu(gate(x)) * given)) [tokens, hidden] of rows given [tokens, per_layer]."""
    gate = g.linear(x, w.matrix("inp_gate", spec.per_layer, spec.hidden))
    h = g.glu(gate, given, act=GELU)
    h = g.linear(h, w.matrix("proj", spec.hidden, spec.per_layer))
    return norm(g, spec, w, h, "post_norm")
