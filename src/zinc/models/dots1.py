"""dots.llm1: experts chosen by sigmoid scores with a bias, after leading dense layers.

There are shared experts, and an RMS norm on every q and k head.
"""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.metadata import Metadata
from zinc.models.parts.moe import experts_from, leading_dense_layers
from zinc.models.parts.spec import ModelSpec


def spec(file: GGUFFile) -> ModelSpec:
    Metadata(file, "dots1").require("expert_gating_func", "expert_weights_scale")
    base = dense_spec(file, "dots1", neox=True, qk_norm=True)
    return replace(
        base,
        experts=experts_from(file, "dots1"),
        n_dense_layers=leading_dense_layers(file, "dots1", base.n_layers),
    )


build = decoder
