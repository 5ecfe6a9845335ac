"""LFM2 with experts: sigmoid scores with a bias for the choice, after leading dense layers."""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.moe import experts_from, leading_dense_layers
from zinc.models.parts.short_conv import short_conv_or_attention, short_conv_spec
from zinc.models.parts.spec import ModelSpec
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph


def spec(file: GGUFFile) -> ModelSpec:
    base = short_conv_spec(file, "lfm2moe")
    return replace(
        base,
        experts=experts_from(file, "lfm2moe", renormalise=True),
        n_dense_layers=leading_dense_layers(file, "lfm2moe", base.n_layers),
    )


def build(g: Graph, spec: ModelSpec, w: Weights) -> None:
    decoder(g, spec, w, mixer=short_conv_or_attention)
