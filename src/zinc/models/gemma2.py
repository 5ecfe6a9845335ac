"""Gemma 2: a sliding window on every other layer, and scores and logits capped by tanh.

The outputs of attention and MLP are normalised before they are added. Norm weights in GGUF already
include the 1 that the published code adds.
"""

from dataclasses import replace
from math import sqrt

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.gemma import query_scale
from zinc.models.parts.metadata import MAX_CONTEXT, Metadata
from zinc.models.parts.spec import ModelSpec
from zinc.ops.values import ActivationFn

LAYERS_27B = 46


def spec(file: GGUFFile) -> ModelSpec:
    m = Metadata(file, "gemma2")
    base = dense_spec(file, "gemma2", neox=True)
    full = replace(
        base.attention[0],
        scale=query_scale(m, base, LAYERS_27B),
        softcap=m.positive("attn_logit_softcapping", default=50.0),
    )
    local = replace(full, window=m.size("attention.sliding_window", MAX_CONTEXT, default=4096))
    return replace(
        base,
        attention=tuple(local if s else full for s in m.sliding_layers(base.n_layers, period=2)),
        activation=ActivationFn.GELU,
        embed_scale=sqrt(base.hidden),
        logit_softcap=m.positive("final_logit_softcapping", default=30.0),
        post_norms=True,
    )


build = decoder
