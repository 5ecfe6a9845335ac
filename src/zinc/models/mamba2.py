"""Mamba-2: selective scans alone, without attention and MLPs."""

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.mamba import mamba2, mamba2_spec
from zinc.models.parts.spec import ModelSpec
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph


def spec(file: GGUFFile) -> ModelSpec:
    return mamba2_spec(file, "mamba2")


def build(g: Graph, spec: ModelSpec, w: Weights) -> None:
    decoder(g, spec, w, mixer=mamba2, mlp=None)
