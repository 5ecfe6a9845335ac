"""Qwen3-Next: qwen35moe with the value heads in the order of training, where those of one key head
are neighbours, and beta and alpha stacked for each key head."""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.delta_net import HybridSpec, hybrid_decoder, hybrid_spec
from zinc.models.parts.moe import experts_from
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph
from zinc.ops.moe import SOFTMAX


def spec(file: GGUFFile) -> HybridSpec:
    experts = experts_from(file, "qwen3next", scoring=SOFTMAX, renormalise=True, shared_gate=True)
    return replace(hybrid_spec(file, "qwen3next", grouped=True), experts=experts)


def build(g: Graph, spec: HybridSpec, w: Weights) -> None:
    hybrid_decoder(g, spec, w)
