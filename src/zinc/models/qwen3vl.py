"""Qwen 3 VL, text: as Qwen 3, dense.

RoPE has a position for each section of dimensions: time, height and width of an image. In a text,
they are equal, so it is plain RoPE, though the dimensions of the sections alternate.
"""

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.metadata import Metadata
from zinc.models.parts.spec import ModelSpec


def spec(file: GGUFFile) -> ModelSpec:
    Metadata(file, "qwen3vl").require("rope.freq_base")
    return dense_spec(file, "qwen3vl", neox=True, qk_norm=True, scaling_is_optional=True)


build = decoder
