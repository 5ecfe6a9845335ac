"""GLM 4 (0414), dense: partial RoPE in adjacent pairs, and biases on q, k and v.

The outputs of attention and MLP are normalised; gate and up are in one tensor. Files with M-RoPE
sections, which are plain RoPE for text, pair i with i + dims/2 instead.
"""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.metadata import Metadata
from zinc.models.parts.spec import ModelSpec


def spec(file: GGUFFile) -> ModelSpec:
    Metadata(file, "glm4").require("rope.freq_base", "rope.dimension_count")
    sections = file.array("glm4.rope.dimension_sections", default=None)
    return replace(dense_spec(file, "glm4", neox=any(sections or ())), post_norms=True)


build = decoder
