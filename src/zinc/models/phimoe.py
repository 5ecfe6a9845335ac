"""Phi 3.5 MoE: layer norms, biases in attention, LongRoPE, and a router of sparse mixing.

Converted files state the attention factor that LongRoPE implies, but the models have their own.
"""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.metadata import MAX_CONTEXT, Metadata
from zinc.models.parts.moe import experts_from
from zinc.models.parts.rope import Rope
from zinc.models.parts.spec import ModelSpec, Norm
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph
from zinc.ops.moe import SPARSE_MIXER

ATTENTION_FACTOR = 1.243163121016122


def spec(file: GGUFFile) -> ModelSpec:
    window = Metadata(file, "phimoe").optional_size("attention.sliding_window", MAX_CONTEXT)
    base = dense_spec(file, "phimoe", neox=True).with_window(window).map_ropes(_own_factor)
    experts = experts_from(file, "phimoe", scoring=SPARSE_MIXER, renormalise=False)
    return replace(base, experts=experts, norm=Norm.LAYER_WITH_BIAS)


def _own_factor(rope: Rope) -> Rope:
    is_long = rope.long_divisors is not None
    return replace(rope, attention_factor=ATTENTION_FACTOR) if is_long else rope


def build(g: Graph, spec: ModelSpec, w: Weights) -> None:
    w.require("output.bias")
    decoder(g, spec, w)
