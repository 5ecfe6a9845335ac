"""DeepSeek V3.2: V3 with sparse attention to the positions that an indexer in each layer selects.

The NextN block attends to all positions.
"""

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.latent import latent_attention
from zinc.models.parts.latent_spec import sparse_spec
from zinc.models.parts.nextn import NextNBlock, draft_decoder
from zinc.models.parts.spec import ModelSpec
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph


def spec(file: GGUFFile) -> ModelSpec:
    return sparse_spec(file, "deepseek32", neox=True)


def build(g: Graph, spec: ModelSpec, w: Weights) -> None:
    decoder(g, spec, w, mixer=latent_attention)


def build_draft(g: Graph, spec: ModelSpec, w: Weights, block: NextNBlock) -> None:
    draft_decoder(g, spec.with_dense_attention(), w, block, mixer=latent_attention)
