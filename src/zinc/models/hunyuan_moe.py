"""Hunyuan with experts: softmax scores, renormalised weights, and a shared expert.

Attention is that of the dense models.
"""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.moe import experts_from
from zinc.models.parts.spec import ModelSpec, QKNorm
from zinc.ops.moe import SOFTMAX


def spec(file: GGUFFile) -> ModelSpec:
    base = dense_spec(file, "hunyuan-moe", neox=True, qk_norm=QKNorm(after_rope=True))
    experts = experts_from(file, "hunyuan-moe", scoring=SOFTMAX, renormalise=True)
    return replace(base, experts=experts)


build = decoder
