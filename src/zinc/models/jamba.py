"""Jamba: Mamba, and attention without RoPE in every few layers; some layers have experts."""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.layer import Layer
from zinc.models.parts.mamba1 import WIDE_RANK, mamba1_from, mamba1_or_attention
from zinc.models.parts.metadata import Metadata
from zinc.models.parts.mlp import gated_mlp
from zinc.models.parts.moe import expert_mlp, experts_from
from zinc.models.parts.spec import ModelSpec
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph
from zinc.ops.moe import SOFTMAX
from zinc.ops.values import Value

PROBE = WIDE_RANK | {"attention.head_count_kv": [0, 2, 0, 2]}


def spec(file: GGUFFile) -> ModelSpec:
    base = dense_spec(file, "jamba", neox=True, hybrid=True)
    base = base.map_attention(lambda a: replace(a, rope=None))
    layers = Metadata(file, "jamba").recurrent_layers(base.n_layers)
    net = mamba1_from(file, "jamba", layers, norm_weights=True)
    if file.int("jamba.expert_count", default=0) < 2:  # one is an MLP
        return replace(base, recurrence=net, n_dense_layers=base.n_layers)
    experts = experts_from(file, "jamba", scoring=SOFTMAX, renormalise=False)
    return replace(base, recurrence=net, experts=experts)


def build(g: Graph, spec: ModelSpec, w: Weights) -> None:
    decoder(g, spec, w, mixer=mamba1_or_attention, mlp=mlp)


def mlp(layer: Layer, x: Value, residual: Value) -> Value:
    """Return residual + experts(x) if the layer has any, else residual + MLP(x)."""
    experts = layer.spec.experts
    has_experts = any(layer.w.has(name, varies=True) for name in ("ffn_gate_inp", "ffn_up_exps"))
    if experts is not None and has_experts:
        return expert_mlp(layer, experts, x, residual)
    return layer.g.add(gated_mlp(layer, x, layer.spec.ffn), residual)
