"""LFM2 and LFM2.5, dense: gated short convolutions, and attention in every few layers."""

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.short_conv import short_conv_or_attention, short_conv_spec
from zinc.models.parts.spec import ModelSpec
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph


def spec(file: GGUFFile) -> ModelSpec:
    return short_conv_spec(file, "lfm2")


def build(g: Graph, spec: ModelSpec, w: Weights) -> None:
    decoder(g, spec, w, mixer=short_conv_or_attention)
