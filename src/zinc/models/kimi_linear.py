"""Kimi Linear: three layers of Kimi Delta Attention, then one of latent attention without RoPE.

Leading layers are dense, the others have a shared expert and experts chosen by sigmoid scores.
"""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.kda import kimi_delta_from, kimi_delta_or_attention
from zinc.models.parts.latent import latent_from
from zinc.models.parts.moe import experts_from, leading_dense_layers
from zinc.models.parts.spec import ModelSpec
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph

ARCH = "kimi-linear"


def spec(file: GGUFFile) -> ModelSpec:
    base = dense_spec(file, ARCH, neox=False, hybrid=True)
    return replace(
        base,
        attention=(replace(latent_from(file, ARCH), rope=None),) * base.n_layers,
        recurrence=kimi_delta_from(file, ARCH, base.n_layers, low_rank=True),
        experts=experts_from(file, ARCH, renormalise=True),
        n_dense_layers=leading_dense_layers(file, ARCH, base.n_layers),
    )


def build(g: Graph, spec: ModelSpec, w: Weights) -> None:
    decoder(g, spec, w, mixer=kimi_delta_or_attention)
