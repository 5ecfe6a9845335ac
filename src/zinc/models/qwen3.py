"""Qwen 3, dense: RMS norm on every q and k head before RoPE, no biases."""

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.blocks import dense_decoder
from zinc.models.parts.spec import Metadata, ModelSpec, dense_spec
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph


def spec(file: GGUFFile) -> ModelSpec:
    Metadata(file, "qwen3").require("rope.freq_base")
    return dense_spec(file, "qwen3", neox=True, qk_norm=True, scaling_is_optional=True)


def build(g: Graph, spec: ModelSpec, w: Weights) -> None:
    dense_decoder(g, spec, w)
