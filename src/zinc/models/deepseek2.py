"""DeepSeek V2, V3 and R1, and models built like them.

Latent attention, leading dense layers, shared experts, and a router with groups: softmax in V2,
sigmoid with a bias for the choice of experts in V3.
"""

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.latent import latent_attention
from zinc.models.parts.latent_spec import latent_spec
from zinc.models.parts.nextn import NextNBlock, draft_decoder
from zinc.models.parts.spec import ModelSpec
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph


def spec(file: GGUFFile) -> ModelSpec:
    return latent_spec(file, "deepseek2")


def build(g: Graph, spec: ModelSpec, w: Weights) -> None:
    decoder(g, spec, w, mixer=latent_attention)


def build_draft(g: Graph, spec: ModelSpec, w: Weights, block: NextNBlock) -> None:
    draft_decoder(g, spec, w, block, mixer=latent_attention)
