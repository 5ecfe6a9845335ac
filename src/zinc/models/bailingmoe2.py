"""Ling and Ring 2 (Bailing MoE): experts chosen from groups by sigmoid scores with a bias.

Leading layers are dense, and there are shared experts. One tensor holds q, k and v. Each head of q
and k is normalised, and RoPE rotates only the first columns of a head.
"""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.metadata import Metadata
from zinc.models.parts.moe import experts_from, leading_dense_layers
from zinc.models.parts.nextn import draft_decoder
from zinc.models.parts.spec import ModelSpec


def spec(file: GGUFFile) -> ModelSpec:
    m = Metadata(file, "bailingmoe2")
    m.require("rope.dimension_count", "expert_gating_func", "expert_weights_scale")
    base = dense_spec(file, "bailingmoe2", neox=True, qk_norm=True, scaling_is_optional=True)
    return replace(
        base,
        experts=experts_from(file, "bailingmoe2"),
        n_dense_layers=leading_dense_layers(file, "bailingmoe2", base.n_layers),
    )


build = decoder
build_draft = draft_decoder
