"""Qwen 3 VL with experts, text: as Qwen 3 with experts. RoPE is that of qwen3vl.py."""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.metadata import Metadata
from zinc.models.parts.moe import experts_from
from zinc.models.parts.spec import ModelSpec
from zinc.ops.moe import SOFTMAX


def spec(file: GGUFFile) -> ModelSpec:
    experts = experts_from(file, "qwen3vlmoe", scoring=SOFTMAX, renormalise=True)
    Metadata(file, "qwen3vlmoe").require("rope.freq_base")
    base = dense_spec(file, "qwen3vlmoe", neox=True, qk_norm=True, scaling_is_optional=True)
    return replace(base, experts=experts)


build = decoder
