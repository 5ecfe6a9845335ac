"""Ling and Ring 3 (Bailing MoE): Kimi Delta Attention with bounded decays, and latent attention.

The last layer of each group attends, with a gate for each head, and so does the NextN block.
Leading layers are dense, the others have a shared expert and experts chosen from groups by sigmoid
scores with a bias.
"""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.kda import kimi_delta_from, kimi_delta_or_attention
from zinc.models.parts.latent import latent_attention, latent_from
from zinc.models.parts.metadata import Metadata
from zinc.models.parts.moe import experts_from, leading_dense_layers
from zinc.models.parts.nextn import NextNBlock, draft_decoder
from zinc.models.parts.spec import AttentionGate, ModelSpec
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph

ARCH = "bailingmoe3"


def spec(file: GGUFFile) -> ModelSpec:
    m = Metadata(file, ARCH)
    m.require("kda.gate_lower_bound", "rope.freq_base", "expert_weights_scale")
    base = dense_spec(file, ARCH, neox=False, hybrid=True)
    return replace(
        base,
        attention=(replace(latent_from(file, ARCH), gate=AttentionGate(per_head=True)),)
        * base.n_layers,
        recurrence=kimi_delta_from(file, ARCH, base.n_layers, low_rank=False),
        experts=replace(experts_from(file, ARCH), limits=m.limits("swiglu_clamp_exp")),
        mlp_limits=m.limits("swiglu_clamp_shexp"),
        n_dense_layers=leading_dense_layers(file, ARCH, base.n_layers),
    )


def build(g: Graph, spec: ModelSpec, w: Weights) -> None:
    decoder(g, spec, w, mixer=kimi_delta_or_attention)


def build_draft(g: Graph, spec: ModelSpec, w: Weights, block: NextNBlock) -> None:
    draft_decoder(g, spec, w, block, mixer=latent_attention)
