"""gpt-oss: biases everywhere, attention sinks, a sliding window on every other layer beginning with
the first, softmax over the chosen experts only, and the clamped SwiGLU."""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.moe import expert_decoder, experts_from
from zinc.models.parts.spec import Metadata, ModelSpec, dense_spec
from zinc.models.parts.weights import Weights
from zinc.ops.elementwise import CLAMPED_SWIGLU
from zinc.ops.graph import Graph
from zinc.ops.moe import SOFTMAX_CHOSEN


def spec(file: GGUFFile) -> ModelSpec:
    m = Metadata(file, "gpt-oss")
    m.require("rope.freq_base", "rope.scaling.type")
    base = dense_spec(file, "gpt-oss", neox=True)
    # The published code does not round the YaRN ramp to whole dimensions, and no key says so.
    a = base.attention[0]
    rope = None if a.rope is None else replace(a.rope, truncate=False)
    window = m.size("attention.sliding_window", 1 << 30)
    sliding = m.sliding_layers(base.n_layers, 2)
    return replace(
        base,
        activation=CLAMPED_SWIGLU,
        experts=experts_from(
            file, "gpt-oss", scoring=SOFTMAX_CHOSEN, renormalise=False, biases=True
        ),
        attention=tuple(
            replace(a, window=window if slides else 0, sinks=True, rope=rope)
            for a, slides in zip(base.attention, sliding, strict=True)
        ),
    )


def build(g: Graph, spec: ModelSpec, w: Weights) -> None:
    for i in range(spec.n_layers):
        w.layer(i).require("attn_q.bias", "attn_k.bias", "attn_v.bias", "attn_output.bias")
    expert_decoder(g, spec, w, ffn_norm="post_attention_norm")
