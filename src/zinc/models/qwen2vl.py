"""Qwen 2 VL and Qwen 2.5 VL, text: as Qwen 2, with biases on q, k and v.

RoPE has a position for each section of dimensions: time, height and width of an image. In a text,
they are equal, so it is plain RoPE.
"""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.metadata import Metadata
from zinc.models.parts.spec import ModelSpec


def spec(file: GGUFFile) -> ModelSpec:
    Metadata(file, "qwen2vl").require("rope.freq_base")
    base = dense_spec(file, "qwen2vl", neox=True, scaling_is_optional=True)
    return replace(base, required_tensors=("attn_q.bias", "attn_k.bias", "attn_v.bias"))


build = decoder
