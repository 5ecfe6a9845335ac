"""DeepSeek V2, V3 and R1, and models built like them.

Latent attention, leading dense layers, shared experts, and a router with groups: softmax in V2,
sigmoid with a bias for the choice of experts in V3.
"""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.latent import latent_attention, latent_from
from zinc.models.parts.metadata import Metadata
from zinc.models.parts.moe import experts_from, leading_dense_layers
from zinc.models.parts.nextn import draft_decoder
from zinc.models.parts.spec import ModelSpec, dense_spec
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph


def spec(file: GGUFFile) -> ModelSpec:
    base = dense_spec(file, "deepseek2", neox=False)
    n_dense = leading_dense_layers(file, "deepseek2", base.n_layers)
    has_experts = n_dense < base.n_layers and file.int("deepseek2.expert_count", default=0) > 0
    if has_experts:
        Metadata(file, "deepseek2").require("expert_weights_scale")
    return replace(
        base,
        attention=(latent_from(file, "deepseek2"),) * base.n_layers,
        experts=experts_from(file, "deepseek2") if has_experts else None,
        n_dense_layers=n_dense,
    )


def build(g: Graph, spec: ModelSpec, w: Weights) -> None:
    decoder(g, spec, w, mixer=latent_attention)


def build_draft(g: Graph, spec: ModelSpec, w: Weights, tokens: tuple[int, ...]) -> None:
    draft_decoder(g, spec, w, tokens, mixer=latent_attention)
