"""Qwen 3.5 and later with experts: qwen35 whose feed-forward layers are experts, the chosen weights
renormalised, and a shared expert with a gate."""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.delta_net import HybridSpec, hybrid_decoder, hybrid_spec
from zinc.models.parts.moe import experts_from
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph
from zinc.ops.moe import SOFTMAX


def spec(file: GGUFFile) -> HybridSpec:
    experts = experts_from(file, "qwen35moe", scoring=SOFTMAX, renormalise=True, shared_gate=True)
    return replace(hybrid_spec(file, "qwen35moe"), experts=experts)


def build(g: Graph, spec: HybridSpec, w: Weights) -> None:
    hybrid_decoder(g, spec, w)
