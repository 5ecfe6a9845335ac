"""Qwen 3 with experts: softmax over all of them, the chosen weights renormalised; attention as in
the dense models."""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.moe import expert_decoder, experts_from
from zinc.models.parts.spec import Metadata, ModelSpec, dense_spec
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph
from zinc.ops.moe import SOFTMAX


def spec(file: GGUFFile) -> ModelSpec:
    experts = experts_from(file, "qwen3moe", scoring=SOFTMAX, renormalise=True)
    Metadata(file, "qwen3moe").require("rope.freq_base")
    base = dense_spec(file, "qwen3moe", neox=True, qk_norm=True, scaling_is_optional=True)
    return replace(base, experts=experts)


def build(g: Graph, spec: ModelSpec, w: Weights) -> None:
    expert_decoder(g, spec, w)
