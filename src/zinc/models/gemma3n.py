"""Gemma 3n, text: several hidden states of a token, and a low-rank path beside attention (Laurel).

Each layer has its own embedding of the token ids. The last layers read the KV cache of earlier
layers. The MLPs of the first layers keep only the largest gates. Scores are not scaled, and value
heads are normalised without a weight.
"""

from __future__ import annotations

from math import inf, isnan, sqrt

from zinc.core.dataclass import dataclass
from zinc.formats.gguf import GGUFFile
from zinc.models.parts.altup import AltUp
from zinc.models.parts.attention import attention
from zinc.models.parts.decoder import embed, head
from zinc.models.parts.dense_spec import vocab_size
from zinc.models.parts.errors import damaged
from zinc.models.parts.gemma import TokenInputSpec, kv_owners
from zinc.models.parts.layer import Layer, RopeTables
from zinc.models.parts.metadata import MAX_CONTEXT, MAX_HEADS, MAX_LAYERS, MAX_WIDTH, Metadata
from zinc.models.parts.mlp import gated_mlp
from zinc.models.parts.rope import rope_from, sliding_rope
from zinc.models.parts.spec import Attention, QKNorm
from zinc.models.parts.token_inputs import token_inputs, token_mlp
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph
from zinc.ops.values import ActivationFn, Value

PROBE = {
    "altup.num_inputs": 256,  # coefficients of whole blocks of every format
    "altup.active_idx": 1,
    "activation_sparsity_scale": [1.0, 1.0, -inf, -inf],
}
MAX_STATES = 256
ONE_STATE = AltUp(1, 0, 0)


@dataclass(frozen=True, slots=True)
class Gemma3nSpec(TokenInputSpec):
    """A spec with sparse gates, Laurel and AltUp.

    cuts: for each layer, the smallest gate that its MLP keeps, in standard deviations above the
    mean; -inf keeps all gates. rank: of the path beside attention.
    """

    cuts: tuple[float, ...] = ()
    rank: int = 0
    altup: AltUp = ONE_STATE


def spec(file: GGUFFile) -> Gemma3nSpec:
    m = Metadata(file, "gemma3n")
    m.require("rope.freq_base", "altup.active_idx")
    hidden = m.size("embedding_length", MAX_WIDTH)
    n_layers = m.size("block_count", MAX_LAYERS)
    ffn = m.sizes("feed_forward_length", MAX_WIDTH, n_layers)
    n_states = m.size("altup.num_inputs", MAX_STATES)
    active = m.optional_size("altup.active_idx", n_states - 1)
    laurel = file.tensors.get("blk.0.laurel_l.weight")
    return Gemma3nSpec(
        arch="gemma3n",
        n_layers=n_layers,
        hidden=hidden,
        ffn=max(ffn),
        vocab=vocab_size(file),
        context=m.size("context_length", MAX_CONTEXT),
        eps=m.positive("attention.layer_norm_rms_epsilon"),
        attention=attention_layers(file, m, n_layers),
        activation=ActivationFn.GELU,
        embed_scale=sqrt(hidden),
        logit_softcap=m.positive("final_logit_softcapping", default=30.0),
        layer_ffn=tuple(ffn),
        token_width=m.size("embedding_length_per_layer_input", MAX_WIDTH),
        cuts=cuts_of(m, n_layers),
        rank=hidden if laurel is None else laurel.shape[0],
        altup=AltUp(n_states, active, hidden),
    )


def cuts_of(m: Metadata, n_layers: int) -> tuple[float, ...]:
    """Return the cut of the gates of each layer."""
    key = "activation_sparsity_scale"
    cuts = tuple(float(x) for x in m.layer_values(key, n_layers))
    if any(isnan(x) or x == inf for x in cuts):
        raise damaged(m.file, f"{m.arch}.{key} must be numbers or -inf, and it is {list(cuts)}")
    return cuts


def attention_layers(file: GGUFFile, m: Metadata, n_layers: int) -> tuple[Attention, ...]:
    """Return the attention of each layer."""
    n_heads = m.size("attention.head_count", MAX_HEADS)
    n_kv_heads = m.size("attention.head_count_kv", MAX_HEADS, default=n_heads)
    m.check_sharing(n_heads, n_kv_heads)
    head_dim = m.size("attention.key_length", MAX_WIDTH)
    window = m.size("attention.sliding_window", MAX_CONTEXT)
    full_rope = rope_from(file, "gemma3n", head_dim, neox=True)
    local_rope = sliding_rope(file, "gemma3n", full_rope.dims, head_dim)
    sliding = m.sliding_layers(n_layers, period=5)
    n_shared = m.optional_size("attention.shared_kv_layers", n_layers)
    return tuple(
        Attention(
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            head_dim=head_dim,
            head_dim_v=head_dim,
            scale=1.0,
            rope=local_rope if slides else full_rope,
            window=window if slides else 0,
            qk_norm=QKNorm(),
            v_norm=True,
            kv_layer=owner,
        )
        for slides, owner in zip(sliding, kv_owners(file, sliding, n_shared), strict=True)
    )


def build(g: Graph, spec: Gemma3nSpec, w: Weights) -> None:
    x = embed(g, spec, w)
    tokens = token_inputs(g, spec, w, x, spec.token_width)
    states, ropes = spec.altup.expanded(g, w, x), RopeTables()
    for i in range(spec.n_layers):
        states = block(Layer(g, spec, i, w.layer(i), ropes), spec, states, tokens[i])
    head(g, spec, w, spec.altup.merged(g, w, states))


def block(layer: Layer, spec: Gemma3nSpec, states: Value, given: Value) -> Value:
    """Return the states [tokens, n * hidden] after one layer.

    given: the layer's rows of `token_inputs`. An MLP of the active state and these rows gives an
    update, which is added to all states except the first.
    """
    g, altup = layer.g, spec.altup
    g.at(layer.name)
    predicted = altup.predicted(layer, states)
    x = altup.activated(g, predicted)
    normed = layer.norm(x, "attn_norm")
    x = g.add(layer.norm(attention(layer, normed), "post_attention_norm"), x)
    x = g.scale(g.add(x, laurel(layer, spec.rank, normed)), sqrt(0.5))
    h = gated_mlp(
        layer, layer.norm(x, "ffn_norm"), spec.layer_ffn[layer.index], spec.cuts[layer.index]
    )
    x = g.add(layer.norm(h, "post_ffw_norm"), x)
    corrected = altup.corrected(layer, predicted, x)
    weight = layer.w.vector("altup_correct_scale", spec.hidden)
    scaled = g.mix(altup.activated(g, corrected), None, weight=weight)
    more = g.mix(token_mlp(layer, scaled, given), None, n_outputs=altup.n - 1)
    others = g.add(more, altup.others(g, corrected))
    return g.concat_heads(altup.first(g, corrected), others, n_heads=1)


def laurel(layer: Layer, rank: int, x: Value) -> Value:
    """Return x + norm(x times two matrices of low rank) for normalised rows x [tokens, hidden]."""
    low = layer.linear(x, "laurel_l", rank)
    h = layer.linear(low, "laurel_r", layer.spec.hidden, rank)
    return layer.g.add(layer.norm(h, "laurel_post_norm"), x)
