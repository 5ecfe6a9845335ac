"""Mamba and Falcon Mamba: selective scans alone, without attention and MLPs."""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import attentionless_spec
from zinc.models.parts.mamba1 import WIDE_RANK, mamba1, mamba1_from
from zinc.models.parts.spec import ModelSpec
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph

PROBE = WIDE_RANK


def spec(file: GGUFFile) -> ModelSpec:
    base = attentionless_spec(file, "mamba")
    return replace(base, recurrence=mamba1_from(file, "mamba", (True,) * base.n_layers))


def build(g: Graph, spec: ModelSpec, w: Weights) -> None:
    decoder(g, spec, w, mixer=mamba1, mlp=None)
