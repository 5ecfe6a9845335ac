"""Command R7B and Command A: three sliding layers with RoPE alternate with a full one without.

Attention and MLP read the same rows. Layer norms have no bias, and the logits are scaled.
"""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.metadata import MAX_CONTEXT, Metadata
from zinc.models.parts.spec import ModelSpec, Norm


def spec(file: GGUFFile) -> ModelSpec:
    m = Metadata(file, "cohere2")
    base = dense_spec(file, "cohere2", neox=False, norm=Norm.LAYER)
    full = replace(base.attention[0], rope=None)
    local = replace(base.attention[0], window=m.size("attention.sliding_window", MAX_CONTEXT))
    sliding = m.sliding_layers(base.n_layers, period=4)
    attention = tuple(local if s else full for s in sliding)
    parallel = replace(base, attention=attention, parallel=True, mlp_norm=base.mixer_norm)
    return replace(parallel, logit_scale=m.positive("logit_scale"))


build = decoder
