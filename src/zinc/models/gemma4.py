"""Gemma 4, text: sliding and global layers that differ in head size, KV heads and RoPE.

The 31B model is dense, 26B-A4B has experts beside the dense MLP, and E2B and E4B have per-layer
token embeddings and share KV in their last layers. Global layers divide RoPE frequencies by
rope_freqs, which leaves most dimensions unrotated. Scores are not scaled, and value heads are
normalised without a weight.
"""

from __future__ import annotations

from math import sqrt

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import embed, head, layers
from zinc.models.parts.dense_spec import vocab_size
from zinc.models.parts.errors import damaged
from zinc.models.parts.gemma import TokenInputSpec, kv_owners
from zinc.models.parts.layer import Layer
from zinc.models.parts.metadata import MAX_CONTEXT, MAX_HEADS, MAX_LAYERS, MAX_WIDTH, Metadata
from zinc.models.parts.mlp import gated_mlp
from zinc.models.parts.moe import MAX_EXPERTS, experts_from, routed_experts
from zinc.models.parts.rope import rope_from, sliding_rope
from zinc.models.parts.spec import Attention, Experts, QKNorm
from zinc.models.parts.token_inputs import token_inputs, token_mlp
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph
from zinc.ops.moe import SOFTMAX
from zinc.ops.values import ActivationFn, Value


def spec(file: GGUFFile) -> TokenInputSpec:
    m = Metadata(file, "gemma4")
    m.require("rope.freq_base")
    hidden = m.size("embedding_length", MAX_WIDTH)
    n_layers = m.size("block_count", MAX_LAYERS)
    ffn = m.sizes("feed_forward_length", MAX_WIDTH, n_layers)
    experts = None
    if m.optional_size("expert_count", MAX_EXPERTS):
        m.require("expert_feed_forward_length")
        experts = experts_from(file, "gemma4", scoring=SOFTMAX, renormalise=True)
    return TokenInputSpec(
        arch="gemma4",
        n_layers=n_layers,
        hidden=hidden,
        ffn=max(ffn),
        vocab=vocab_size(file),
        context=m.size("context_length", MAX_CONTEXT),
        eps=m.positive("attention.layer_norm_rms_epsilon"),
        attention=attention_layers(file, m, n_layers),
        activation=ActivationFn.GELU,
        embed_scale=sqrt(hidden),
        logit_softcap=m.optional_positive("final_logit_softcapping"),
        experts=experts,
        post_norms=True,
        layer_ffn=tuple(ffn),
        token_width=m.optional_size("embedding_length_per_layer_input", MAX_WIDTH),
    )


def attention_layers(file: GGUFFile, m: Metadata, n_layers: int) -> tuple[Attention, ...]:
    """Return the attention of each layer."""
    n_heads = m.sizes("attention.head_count", MAX_HEADS, n_layers)
    n_kv_heads = m.sizes("attention.head_count_kv", MAX_HEADS, n_layers, default=n_heads[0])
    sliding = m.sliding_layers(n_layers, period=6)
    window = m.size("attention.sliding_window", MAX_CONTEXT)
    full_dim = m.size("attention.key_length", MAX_WIDTH)
    local_dim = m.size("attention.key_length_swa", MAX_WIDTH, default=full_dim)
    local_dims = m.size("rope.dimension_count_swa", MAX_WIDTH, default=local_dim)
    local_rope = sliding_rope(file, "gemma4", local_dims, local_dim)
    full_rope = rope_from(file, "gemma4", full_dim, neox=True)
    owners = kv_owners(file, sliding, m.optional_size("attention.shared_kv_layers", n_layers))
    scale = m.positive("attention.scale", default=1.0)

    attention: list[Attention] = []
    for i, slides in enumerate(sliding):
        m.check_sharing(n_heads[i], n_kv_heads[i])
        owner = owners[i]
        if owner is not None and n_kv_heads[owner] != n_kv_heads[i]:
            raise damaged(
                file, f"layer {i} shares the KV of layer {owner}, which has other KV heads"
            )
        head_dim = local_dim if slides else full_dim
        attention.append(
            Attention(
                n_heads=n_heads[i],
                n_kv_heads=n_kv_heads[i],
                head_dim=head_dim,
                head_dim_v=head_dim,
                scale=scale,
                rope=local_rope if slides else full_rope,
                window=window if slides else 0,
                qk_norm=QKNorm(),
                k_is_v=not slides and not Weights(file).layer(i).has("attn_v"),
                v_norm=True,
                kv_layer=owner,
            )
        )
    return tuple(attention)


def build(g: Graph, spec: TokenInputSpec, w: Weights) -> None:
    if any(a.rope is not None and not a.window and a.rope.divisors is None for a in spec.attention):
        w.require("rope_freqs.weight")
    x = embed(g, spec, w)
    tokens = token_inputs(g, spec, w, x, spec.token_width) if spec.token_width else []

    def mlp(layer: Layer, x: Value, residual: Value) -> Value:
        h = gated_mlp(layer, x, spec.layer_ffn[layer.index])
        if spec.experts is not None:
            h = layer.norm(h, "post_ffw_norm_1")
            h = g.add(expert_branch(layer, spec.experts, residual), h)
        x = g.add(layer.norm(h, "post_ffw_norm"), residual)
        if tokens:
            x = g.add(token_mlp(layer, x, tokens[layer.index]), x)
        if layer.w.has("layer_output_scale"):
            x = g.scale(x, layer.w.scalar("layer_output_scale"))
        return x

    head(g, spec, w, layers(g, spec, w, x, mlp=mlp))


def expert_branch(layer: Layer, e: Experts, x: Value) -> Value:
    """Return the experts' output for rows x [tokens, hidden] that are not yet normalised.

    The router has a norm of its own and divides by sqrt(hidden).
    """
    g, w, hidden = layer.g, layer.w, layer.spec.hidden
    h = g.rms_norm(x, w.vector("ffn_gate_inp", hidden, "scale"), eps=layer.spec.eps)
    logits = g.scale(g.linear(h, w.matrix("ffn_gate_inp", e.count, hidden)), hidden**-0.5)
    routes = g.route(logits, None, top_k=e.top_k, scoring=e.scoring, renormalise=e.renormalise)
    order, starts = g.group_experts(routes, n_experts=e.count)
    h = layer.norm(x, "pre_ffw_norm_2")
    h = routed_experts(layer, e, h, routes, order, starts)
    return layer.norm(h, "post_ffw_norm_2")
