"""Step 3.5 and 3.7 Flash: sliding layers with more heads, a gate for each head, and experts.

RoPE rotates all dimensions of a head in sliding-window layers, and half of them in the others.
Leading layers are dense; experts are chosen by sigmoid scores with a bias, and some layers limit
activations. NextN blocks read rows that are not normalised, and have the attention that the file
states for them.
"""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.metadata import MAX_CONTEXT, Metadata
from zinc.models.parts.moe import experts_from, leading_dense_layers
from zinc.models.parts.nextn import NextNBlock, draft_decoder
from zinc.models.parts.rope import sliding_rope
from zinc.models.parts.spec import AttentionGate, ModelSpec, NextNInput
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph
from zinc.ops.moe import SIGMOID

ARCH = "step35"


def spec(file: GGUFFile) -> ModelSpec:
    m = Metadata(file, ARCH)
    m.require("rope.freq_base")
    base = dense_spec(file, ARCH, neox=True, qk_norm=True)
    window, n_layers = m.size("attention.sliding_window", MAX_CONTEXT), base.n_layers
    attention = []
    for a, slides in zip(base.attention, m.sliding_layers(n_layers, period=4), strict=True):
        assert a.rope is not None
        rope = a.rope.first_half()
        if slides:
            rope = sliding_rope(file, ARCH, a.rope.dims, a.head_dim, a.rope.base)
        gate = AttentionGate(per_head=True)
        attention.append(replace(a, rope=rope, window=window if slides else 0, gate=gate))
    experts = experts_from(file, ARCH, scoring=SIGMOID)
    return replace(
        base,
        attention=tuple(attention),
        experts=replace(experts, limits=m.limits("swiglu_clamp_exp")),
        mlp_limits=m.limits("swiglu_clamp_shexp"),
        n_dense_layers=leading_dense_layers(file, ARCH, n_layers),
        raw_nextn=True,
        nextn_input=NextNInput.PREVIOUS,
    )


build = decoder


def build_draft(g: Graph, spec: ModelSpec, w: Weights, block: NextNBlock) -> None:
    slides = Metadata(w.file, ARCH).sliding_layers(spec.n_layers + block.depth + 1, period=4)
    alike = (i for i in range(spec.n_layers) if slides[i] == slides[-1])
    draft_decoder(g, spec, w, block, like=next(alike, -1))
