"""Phi 1, 1.5 and 2: attention and an MLP without gate read the same rows; biases everywhere."""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.spec import ModelSpec, Norm
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph
from zinc.ops.values import ActivationFn


def spec(file: GGUFFile) -> ModelSpec:
    base = dense_spec(file, "phi2", neox=True, norm=Norm.LAYER_WITH_BIAS)
    parallel = replace(base, parallel=True, mlp_norm=base.mixer_norm)
    return replace(parallel, activation=ActivationFn.GELU, gated_mlp=False)


def build(g: Graph, spec: ModelSpec, w: Weights) -> None:
    w.require("output.bias")
    decoder(g, spec, w)
