"""Llama 1 to 3, Mistral and their many fine-tunes. RoPE pairs adjacent dimensions (2i, 2i + 1):
converters permute q and k rows for it."""

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.blocks import dense_decoder
from zinc.models.parts.spec import ModelSpec, dense_spec
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph


def spec(file: GGUFFile) -> ModelSpec:
    return dense_spec(file, "llama", neox=False)


def build(g: Graph, spec: ModelSpec, w: Weights) -> None:
    dense_decoder(g, spec, w)
