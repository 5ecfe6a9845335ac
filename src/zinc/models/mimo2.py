"""MiMo V2: sliding layers with sinks and more KV heads, and experts after leading dense layers.

Experts are chosen by sigmoid scores with a bias. Values have a scale and fewer dimensions than
keys, and RoPE rotates a part of each head.
"""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.metadata import MAX_CONTEXT, Metadata
from zinc.models.parts.moe import experts_from, leading_dense_layers
from zinc.models.parts.nextn import sliding_draft_decoder
from zinc.models.parts.rope import sliding_rope
from zinc.models.parts.spec import ModelSpec, NextNInput
from zinc.ops.moe import SIGMOID


def spec(file: GGUFFile) -> ModelSpec:
    m = Metadata(file, "mimo2")
    m.require("rope.dimension_count", "rope.freq_base")
    base = dense_spec(file, "mimo2", neox=True)
    window = m.size("attention.sliding_window", MAX_CONTEXT)
    scale = m.optional_positive("attention.value_scale") or 1.0
    attention = [replace(a, v_scale=scale) for a in base.attention]
    for i, slides in enumerate(m.sliding_layers(base.n_layers, period=6)):
        a = attention[i]
        if slides and a.rope is not None:
            rope = sliding_rope(file, "mimo2", a.rope.dims, a.head_dim, a.rope.base)
            attention[i] = replace(a, window=window, rope=rope, sinks=True)
    return replace(
        base,
        attention=tuple(attention),
        experts=experts_from(file, "mimo2", scoring=SIGMOID, renormalise=True),
        n_dense_layers=leading_dense_layers(file, "mimo2", base.n_layers),
        nextn_input=NextNInput.MODEL,
    )


build = decoder
build_draft = sliding_draft_decoder
