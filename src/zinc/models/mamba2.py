"""Mamba-2: selective scans alone, without attention and MLPs."""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import attentionless_spec
from zinc.models.parts.mamba import mamba2, mamba2_from
from zinc.models.parts.spec import ModelSpec
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph


def spec(file: GGUFFile) -> ModelSpec:
    base = attentionless_spec(file, "mamba2")
    net = mamba2_from(file, "mamba2", base.n_layers)
    return replace(base, recurrence=replace(net, layers=(True,) * base.n_layers))


def build(g: Graph, spec: ModelSpec, w: Weights) -> None:
    decoder(g, spec, w, mixer=mamba2, mlp=None)
