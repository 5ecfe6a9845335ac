"""Gemma 3, text: five sliding layers and a global one in turn, each kind with its own RoPE base.

Context scaling applies to global layers only. Queries and keys are normalised, scores not capped.
"""

from dataclasses import replace
from math import sqrt

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.gemma import query_scale
from zinc.models.parts.metadata import MAX_CONTEXT, Metadata
from zinc.models.parts.rope import sliding_rope
from zinc.models.parts.spec import ModelSpec
from zinc.ops.values import ActivationFn

LAYERS_27B = 62


def spec(file: GGUFFile) -> ModelSpec:
    m = Metadata(file, "gemma3")
    m.require("rope.freq_base")
    base = dense_spec(file, "gemma3", neox=True, qk_norm=True)
    full = replace(base.attention[0], scale=query_scale(m, base, LAYERS_27B))
    attention = [full] * base.n_layers
    if window := m.optional_size("attention.sliding_window", MAX_CONTEXT):
        assert full.rope is not None
        rope = sliding_rope(file, "gemma3", full.rope.dims, full.head_dim)
        local = replace(full, window=window, rope=rope)
        sliding = m.sliding_layers(base.n_layers, period=6)
        attention = [local if s else full for s in sliding]
    return replace(
        base,
        attention=tuple(attention),
        activation=ActivationFn.GELU,
        embed_scale=sqrt(base.hidden),
        logit_softcap=m.optional_positive("final_logit_softcapping"),
        post_norms=True,
    )


build = decoder
