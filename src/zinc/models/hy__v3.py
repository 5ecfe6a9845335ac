"""Hunyuan 3 (Hy3): experts chosen by sigmoid scores with a bias, after a dense layer.

There is a shared expert, and an RMS norm on every q and k head before RoPE.
"""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.metadata import Metadata
from zinc.models.parts.moe import experts_from, leading_dense_layers
from zinc.models.parts.nextn import draft_decoder
from zinc.models.parts.spec import ModelSpec
from zinc.ops.moe import SIGMOID


def spec(file: GGUFFile) -> ModelSpec:
    Metadata(file, "hy_v3").require("expert_weights_scale")
    base = dense_spec(file, "hy_v3", neox=True, qk_norm=True)
    return replace(
        base,
        experts=experts_from(file, "hy_v3", scoring=SIGMOID),
        n_dense_layers=leading_dense_layers(file, "hy_v3", base.n_layers),
    )


build = decoder
build_draft = draft_decoder
