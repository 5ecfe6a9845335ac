"""OLMoE: softmax over all experts, and the chosen weights are not renormalised.

q and k are normalised over all heads together.
"""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.moe import experts_from
from zinc.models.parts.spec import ModelSpec, QKNorm
from zinc.ops.moe import SOFTMAX


def spec(file: GGUFFile) -> ModelSpec:
    base = dense_spec(file, "olmoe", neox=True, qk_norm=QKNorm(joint=True))
    experts = experts_from(file, "olmoe", scoring=SOFTMAX, renormalise=False)
    return replace(base, experts=experts)


build = decoder
