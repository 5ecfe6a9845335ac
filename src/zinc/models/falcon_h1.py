"""Falcon-H1: Mamba-2 and attention side by side in every layer, whose outputs are added.

The multipliers of the published models are part of the weights in a file.
"""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.attention import attention
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.layer import Layer
from zinc.models.parts.mamba import mamba2, mamba2_from
from zinc.models.parts.spec import ModelSpec
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph
from zinc.ops.values import Value


def spec(file: GGUFFile) -> ModelSpec:
    base = dense_spec(file, "falcon-h1", neox=True, scaling_is_optional=True)
    net = mamba2_from(file, "falcon-h1", base.n_layers)
    every = (True,) * base.n_layers
    return replace(base, recurrence=replace(net, layers=every, norm_is_optional=True))


def build(g: Graph, spec: ModelSpec, w: Weights) -> None:
    decoder(g, spec, w, mixer=both)


def both(layer: Layer, x: Value) -> Value:
    return layer.g.add(mamba2(layer, x), attention(layer, x))
