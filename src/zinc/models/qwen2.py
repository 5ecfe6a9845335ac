"""Qwen 2 and 2.5, dense: biases on q, k and v."""

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.blocks import dense_decoder
from zinc.models.parts.spec import ModelSpec, dense_spec
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph


def spec(file: GGUFFile) -> ModelSpec:
    return dense_spec(file, "qwen2", neox=True, scaling_is_optional=True)


def build(g: Graph, spec: ModelSpec, w: Weights) -> None:
    for i in range(spec.n_layers):
        w.layer(i).require("attn_q.bias", "attn_k.bias", "attn_v.bias")
    dense_decoder(g, spec, w)
