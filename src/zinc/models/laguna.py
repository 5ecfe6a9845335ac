"""Laguna: attention with softplus gates, some layers with windows, and experts after dense layers.

The gates are one for each head (XS.2, S.2) or one for each column (M.1). Sliding layers have RoPE
of their own, and may have more heads. Experts are chosen by sigmoid scores with a bias.
"""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.metadata import MAX_CONTEXT, MAX_WIDTH, Metadata
from zinc.models.parts.moe import experts_from, leading_dense_layers
from zinc.models.parts.rope import sliding_rope
from zinc.models.parts.spec import AttentionGate, ModelSpec
from zinc.ops.moe import SIGMOID


def spec(file: GGUFFile) -> ModelSpec:
    m = Metadata(file, "laguna")
    m.require("rope.freq_base", "rope.dimension_count")
    base = dense_spec(file, "laguna", neox=True, qk_norm=True)
    window, n_layers = m.optional_size("attention.sliding_window", MAX_CONTEXT), base.n_layers
    slides = m.sliding_layers(n_layers, period=4, full_first=True) if window else [False] * n_layers
    gates = file.tensors.get("blk.0.attn_gate.weight")
    per_head = gates is None or gates.shape[0] == base.attention[0].n_heads
    temperature = m.optional_positive("rope.scaling.yarn_attn_factor")
    attention = []
    for a, is_sliding in zip(base.attention, slides, strict=True):
        rope = a.rope
        if is_sliding:
            dims = m.size("rope.dimension_count_swa", MAX_WIDTH, default=a.head_dim)
            rope = sliding_rope(file, "laguna", dims, a.head_dim)
        elif rope is not None and temperature:
            rope = rope.with_temperature(temperature)
        gate = AttentionGate(per_head=per_head, softplus=True)
        attention.append(replace(a, rope=rope, window=window if is_sliding else 0, gate=gate))
    return replace(
        base,
        attention=tuple(attention),
        experts=experts_from(file, "laguna", scoring=SIGMOID, renormalise=True),
        n_dense_layers=leading_dense_layers(file, "laguna", n_layers),
    )


build = decoder
