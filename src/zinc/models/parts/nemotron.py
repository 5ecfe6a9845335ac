"""Nemotron-H: decoders whose layers are each Mamba-2, attention, an MLP or experts."""

from __future__ import annotations

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.layer import Layer
from zinc.models.parts.mamba import mamba2_from, mamba2_or_attention
from zinc.models.parts.metadata import Metadata
from zinc.models.parts.mlp import plain_mlp
from zinc.models.parts.moe import expert_mlp
from zinc.models.parts.spec import ModelSpec
from zinc.ops.values import ActivationFn, Value

# Metadata of four layers: Mamba-2, an MLP, attention and Mamba-2.
LAYER_KINDS = {
    "feed_forward_length": [0, 256, 0, 0],
    "attention.head_count_kv": [0, 0, 2, 0],
}


def nemotron_spec(file: GGUFFile, arch: str) -> ModelSpec:
    """Return the spec of a decoder without RoPE whose MLPs are relu^2 without a gate.

    A layer with an MLP width is an MLP, one with KV heads is attention, and others are Mamba-2.
    """
    base = dense_spec(file, arch, neox=True, hybrid=True)
    base = base.map_attention(lambda a: replace(a, rope=None))
    mlp_layers = tuple(n > 0 for n in Metadata(file, arch).mlp_widths(base.n_layers))
    net = mamba2_from(file, arch, base.n_layers)
    recurrent = (a and not b for a, b in zip(net.layers, mlp_layers, strict=True))
    return replace(
        base,
        recurrence=replace(net, layers=tuple(recurrent)),
        mlp_layers=mlp_layers,
        activation=ActivationFn.RELU_SQUARED,
        gated_mlp=False,
    )


def nemotron_mixer(layer: Layer, x: Value) -> Value:
    """Return the output [tokens, hidden] of the layer, of any kind, for normalised rows x."""
    spec = layer.spec
    if spec.mlp_layers[layer.index]:
        if spec.experts is not None:
            layer.w.require("exp_probs_b.bias")  # optional for the shared code
            return expert_mlp(layer, spec.experts, x, None)
        return plain_mlp(layer, x, spec.ffn)
    return mamba2_or_attention(layer, x)
