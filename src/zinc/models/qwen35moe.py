"""Qwen 3.5 and later with experts: softmax over all experts, and a shared expert with a gate.

The weights of the chosen experts are renormalised. The mixers are those of qwen35.
"""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.delta_net import delta_net_or_attention, delta_net_spec
from zinc.models.parts.moe import experts_from
from zinc.models.parts.nextn import draft_decoder
from zinc.models.parts.spec import ModelSpec
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph
from zinc.ops.moe import SOFTMAX


def spec(file: GGUFFile) -> ModelSpec:
    experts = experts_from(file, "qwen35moe", scoring=SOFTMAX, renormalise=True, shared_gate=True)
    return replace(delta_net_spec(file, "qwen35moe"), experts=experts)


def build(g: Graph, spec: ModelSpec, w: Weights) -> None:
    decoder(g, spec, w, mixer=delta_net_or_attention)


build_draft = draft_decoder
