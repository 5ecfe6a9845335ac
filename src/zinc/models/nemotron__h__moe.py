"""Nemotron 3: the layers of Nemotron-H, with experts in place of MLPs.

Experts have no gate, and may read and write a latent that is narrower than the hidden rows.
"""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.metadata import MAX_WIDTH, Metadata
from zinc.models.parts.moe import experts_from
from zinc.models.parts.nemotron import LAYER_KINDS, nemotron_mixer, nemotron_spec
from zinc.models.parts.spec import ModelSpec
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph
from zinc.ops.moe import SIGMOID

PROBE = LAYER_KINDS


def spec(file: GGUFFile) -> ModelSpec:
    latent = Metadata(file, "nemotron_h_moe").optional_size("moe_latent_size", MAX_WIDTH)
    experts = experts_from(file, "nemotron_h_moe", scoring=SIGMOID)
    experts = replace(experts, gated=False, latent=latent)
    return replace(nemotron_spec(file, "nemotron_h_moe"), experts=experts)


def build(g: Graph, spec: ModelSpec, w: Weights) -> None:
    decoder(g, spec, w, mixer=nemotron_mixer, mlp=None)
