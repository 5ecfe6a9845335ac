"""gpt-oss: biases everywhere, attention sinks, a sliding window on even layers, clamped SwiGLU.

The router takes the softmax over the chosen experts only.
"""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.metadata import MAX_CONTEXT, Metadata
from zinc.models.parts.moe import experts_from
from zinc.models.parts.spec import ModelSpec
from zinc.ops.moe import SOFTMAX_CHOSEN
from zinc.ops.values import ActivationFn


def spec(file: GGUFFile) -> ModelSpec:
    m = Metadata(file, "gpt-oss")
    m.require("rope.freq_base", "rope.scaling.type")
    base = dense_spec(file, "gpt-oss", neox=True)
    # The published code does not round the YaRN ramp to whole dimensions; no key states it.
    a = base.attention[0]
    rope = None if a.rope is None else replace(a.rope, truncate=False)
    full = replace(a, sinks=True, rope=rope)
    local = replace(full, window=m.size("attention.sliding_window", MAX_CONTEXT))
    return replace(
        base,
        attention=tuple(local if s else full for s in m.sliding_layers(base.n_layers, period=2)),
        activation=ActivationFn.CLAMPED_SWIGLU,
        experts=experts_from(
            file, "gpt-oss", scoring=SOFTMAX_CHOSEN, renormalise=False, biases=True
        ),
        mlp_norm="post_attention_norm",
        required_tensors=("attn_q.bias", "attn_k.bias", "attn_v.bias", "attn_output.bias"),
    )


build = decoder
