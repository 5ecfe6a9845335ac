"""Ling Lite and Plus of the first generation: experts in every layer, and shared experts."""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.metadata import Metadata
from zinc.models.parts.moe import experts_from
from zinc.models.parts.spec import ModelSpec
from zinc.ops.moe import SOFTMAX


def spec(file: GGUFFile) -> ModelSpec:
    Metadata(file, "bailingmoe").require("expert_weights_norm")
    base = dense_spec(file, "bailingmoe", neox=False)
    return replace(base, experts=experts_from(file, "bailingmoe", scoring=SOFTMAX))


build = decoder
