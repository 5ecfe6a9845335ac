"""Qwen 3, dense: RMS norm on every q and k head before RoPE, no biases."""

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.metadata import Metadata
from zinc.models.parts.spec import ModelSpec


def spec(file: GGUFFile) -> ModelSpec:
    Metadata(file, "qwen3").require("rope.freq_base")
    return dense_spec(file, "qwen3", neox=True, qk_norm=True, scaling_is_optional=True)


build = decoder
