"""Muse Glimmer, text: a normalised embedding, and norms before and after attention and MLP.

A gate scales the attention output. Sliding-window layers have RoPE; the other layers have full
attention without RoPE.
"""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.metadata import MAX_CONTEXT, Metadata
from zinc.models.parts.spec import AttentionGate, ModelSpec


def spec(file: GGUFFile) -> ModelSpec:
    m = Metadata(file, "muse-glimmer")
    base = dense_spec(file, "muse-glimmer", neox=False, qk_norm=True)
    gated = replace(base.attention[0], gate=AttentionGate())
    local = replace(gated, window=m.size("attention.sliding_window", MAX_CONTEXT))
    full = replace(gated, rope=None)
    return replace(
        base,
        attention=tuple(local if s else full for s in m.sliding_layers(base.n_layers, period=4)),
        embed_norm=True,
        post_norms=True,
        post_eps=1e-8,  # no key states it
        logit_scale=m.positive("logit_scale"),
        logit_softcap=m.optional_positive("final_logit_softcapping"),
    )


build = decoder
