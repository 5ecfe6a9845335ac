"""GLM 4 (0414), dense: half of each head rotates, in adjacent pairs; biases on q, k and v; what a
block adds is normalised first; gate and up in one tensor. Files with M-RoPE sections, which are the
same as plain RoPE for text, have q and k rows permuted for the split pairing."""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.blocks import dense_decoder
from zinc.models.parts.spec import Metadata, ModelSpec, dense_spec
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph


def spec(file: GGUFFile) -> ModelSpec:
    Metadata(file, "glm4").require("rope.freq_base", "rope.dimension_count")
    sections = file.array("glm4.rope.dimension_sections", default=None)
    return replace(dense_spec(file, "glm4", neox=any(sections or ())), post_norms=True)


def build(g: Graph, spec: ModelSpec, w: Weights) -> None:
    dense_decoder(g, spec, w)
