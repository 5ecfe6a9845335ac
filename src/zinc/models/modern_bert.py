"""ModernBERT: norms before attention and MLP, and a global layer before every two local ones.

A local layer sees as far ahead as back, and has its own RoPE base. The first layer reads the
embedding, which is normalised already.
"""

from __future__ import annotations

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.attention import attention
from zinc.models.parts.decoder import head
from zinc.models.parts.encoder import embed, encoder_spec
from zinc.models.parts.errors import unsupported
from zinc.models.parts.layer import Layer, RopeTables
from zinc.models.parts.metadata import Metadata
from zinc.models.parts.mlp import mlp
from zinc.models.parts.rope import sliding_rope
from zinc.models.parts.spec import ModelSpec, Norm
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph
from zinc.ops.values import ActivationFn

ARCH = "modern-bert"
ACTIVATIONS = {
    "gelu": ActivationFn.GELU_ERF,
    "gelu_pytorch_tanh": ActivationFn.GELU,
    "silu": ActivationFn.SILU,
}


def spec(file: GGUFFile) -> ModelSpec:
    m = Metadata(file, ARCH)
    m.require("rope.freq_base")
    base = encoder_spec(file, ARCH, norm=Norm.LAYER)
    activation = file.str(f"{ARCH}.hidden_activation", default="gelu")
    if activation not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise unsupported(file, f"its activation is {activation!r}, and zinc knows {known}")
    full = base.attention[0]
    layers = [full] * base.n_layers
    if window := m.symmetric_window():
        assert full.rope is not None
        rope = sliding_rope(file, ARCH, full.rope.dims, full.head_dim, base=full.rope.base)
        local = replace(full, window=window, rope=rope)
        sliding = m.sliding_layers(base.n_layers, period=3, full_first=True)
        layers = [local if s else full for s in sliding]
    return replace(base, attention=tuple(layers), activation=ACTIVATIONS[activation])


def build(g: Graph, spec: ModelSpec, w: Weights) -> None:
    x = embed(g, spec, w)
    ropes = RopeTables()
    for i in range(spec.n_layers):
        layer = Layer(g, spec, i, w.layer(i), ropes)
        g.at(layer.name)
        normed = layer.norm(x, "attn_norm") if i > 0 else x
        x = g.add(attention(layer, normed), x)
        x = mlp(layer, layer.norm(x, "ffn_norm"), x)
    head(g, spec, w, x)
