"""MiniMax M2: experts chosen by sigmoid scores with a bias, in every layer.

q and k are normalised over all heads together, and RoPE rotates a part of each head.
"""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.metadata import Metadata
from zinc.models.parts.moe import experts_from
from zinc.models.parts.spec import ModelSpec, QKNorm
from zinc.ops.moe import SIGMOID


def spec(file: GGUFFile) -> ModelSpec:
    Metadata(file, "minimax-m2").require("rope.dimension_count", "rope.freq_base")
    base = dense_spec(file, "minimax-m2", neox=True, qk_norm=QKNorm(joint=True))
    experts = experts_from(file, "minimax-m2", scoring=SIGMOID, renormalise=True)
    return replace(base, experts=experts)


build = decoder
