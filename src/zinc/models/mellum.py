"""Mellum 2: softmax over all experts, renormalised weights, q and k norms on every head.

Three sliding-window layers, whose RoPE is not scaled, alternate with one full-attention layer.
"""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.metadata import MAX_CONTEXT, Metadata
from zinc.models.parts.moe import experts_from
from zinc.models.parts.rope import sliding_rope
from zinc.models.parts.spec import ModelSpec
from zinc.ops.moe import SOFTMAX


def spec(file: GGUFFile) -> ModelSpec:
    m = Metadata(file, "mellum")
    base = dense_spec(file, "mellum", neox=True, qk_norm=True)
    full, attention = base.attention[0], list(base.attention)
    if window := m.optional_size("attention.sliding_window", MAX_CONTEXT):
        assert full.rope is not None
        rope = sliding_rope(file, "mellum", full.rope.dims, full.head_dim, full.rope.base)
        local = replace(full, window=window, rope=rope)
        attention = [local if s else full for s in m.sliding_layers(base.n_layers, period=4)]
    experts = experts_from(file, "mellum", scoring=SOFTMAX, renormalise=True)
    return replace(base, attention=tuple(attention), experts=experts)


build = decoder
