"""Trinity (AFMoE): norms before and after attention and MLP, and a gate on the attention output.

Experts are chosen by sigmoid scores with a bias, after leading dense layers. Three sliding-window
layers with RoPE alternate with one full-attention layer without RoPE.
"""

from dataclasses import replace
from math import sqrt

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.metadata import MAX_CONTEXT, Metadata
from zinc.models.parts.moe import experts_from, leading_dense_layers
from zinc.models.parts.spec import AttentionGate, ModelSpec
from zinc.ops.moe import SIGMOID


def spec(file: GGUFFile) -> ModelSpec:
    m = Metadata(file, "afmoe")
    m.require("expert_weights_scale")
    base = dense_spec(file, "afmoe", neox=True, qk_norm=True)
    gated = replace(base.attention[0], gate=AttentionGate())
    local = replace(gated, window=m.size("attention.sliding_window", MAX_CONTEXT))
    full = replace(gated, rope=None)
    return replace(
        base,
        attention=tuple(local if s else full for s in m.sliding_layers(base.n_layers, period=4)),
        embed_scale=sqrt(base.hidden),
        experts=experts_from(file, "afmoe", scoring=SIGMOID),
        n_dense_layers=leading_dense_layers(file, "afmoe", base.n_layers),
        post_norms=True,
    )


build = decoder
