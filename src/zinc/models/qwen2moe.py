"""Qwen 1.5 and 2 with experts: softmax over all of them, weights as they are, and a shared expert
scaled by a gate of its own."""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.moe import expert_decoder, experts_from
from zinc.models.parts.spec import ModelSpec, dense_spec
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph
from zinc.ops.moe import SOFTMAX


def spec(file: GGUFFile) -> ModelSpec:
    experts = experts_from(file, "qwen2moe", scoring=SOFTMAX, renormalise=False, shared_gate=True)
    base = dense_spec(file, "qwen2moe", neox=True, scaling_is_optional=True)
    return replace(base, experts=experts)


def build(g: Graph, spec: ModelSpec, w: Weights) -> None:
    for i in range(spec.n_layers):
        w.layer(i).require("attn_q.bias", "attn_k.bias", "attn_v.bias", "ffn_up_shexp.weight")
    expert_decoder(g, spec, w)
