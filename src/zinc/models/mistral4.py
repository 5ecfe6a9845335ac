"""Mistral Small 4: latent attention whose queries grow with their position, and experts."""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.latent import latent_attention, latent_from
from zinc.models.parts.moe import experts_from, leading_dense_layers
from zinc.models.parts.spec import ModelSpec
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph
from zinc.ops.moe import SOFTMAX


def spec(file: GGUFFile) -> ModelSpec:
    base = dense_spec(file, "mistral4", neox=False)
    return replace(
        base,
        attention=(latent_from(file, "mistral4"),) * base.n_layers,
        experts=experts_from(file, "mistral4", scoring=SOFTMAX),
        n_dense_layers=leading_dense_layers(file, "mistral4", base.n_layers),
    )


def build(g: Graph, spec: ModelSpec, w: Weights) -> None:
    decoder(g, spec, w, mixer=latent_attention)
