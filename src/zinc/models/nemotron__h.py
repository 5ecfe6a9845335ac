"""Nemotron-H and Nemotron Nano 2: each layer is Mamba-2, attention without RoPE or a relu^2 MLP."""

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.nemotron import LAYER_KINDS, nemotron_mixer, nemotron_spec
from zinc.models.parts.spec import ModelSpec
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph

PROBE = LAYER_KINDS


def spec(file: GGUFFile) -> ModelSpec:
    return nemotron_spec(file, "nemotron_h")


def build(g: Graph, spec: ModelSpec, w: Weights) -> None:
    decoder(g, spec, w, mixer=nemotron_mixer, mlp=None)
