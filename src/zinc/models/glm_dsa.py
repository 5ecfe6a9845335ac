"""GLM 5: built like DeepSeek V3.2, but index heads are rotated in neighbouring pairs.

From GLM 5.2 on, some layers have no indexer and attend to the positions of the layer before them.
Files list these layers, or have a context that only these models have. The NextN block attends to
all positions.
"""

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.latent import latent_attention
from zinc.models.parts.latent_spec import sparse_spec
from zinc.models.parts.metadata import MAX_CONTEXT, Metadata
from zinc.models.parts.nextn import NextNBlock, draft_decoder
from zinc.models.parts.spec import ModelSpec
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph
from zinc.ops.moe import SIGMOID

SHARING_CONTEXT = 1 << 20  # tokens


def spec(file: GGUFFile) -> ModelSpec:
    m = Metadata(file, "glm-dsa")
    shares = m.size("context_length", MAX_CONTEXT) >= SHARING_CONTEXT
    has_own = [not shares or i < 2 or i % 4 == 2 for i in range(m.layers()[0])]
    stated = file.int("glm-dsa.expert_gating_func", default=0)
    return sparse_spec(
        file, "glm-dsa", neox=False, has_own=has_own, scoring=None if stated else SIGMOID
    )


def build(g: Graph, spec: ModelSpec, w: Weights) -> None:
    decoder(g, spec, w, mixer=latent_attention)


def build_draft(g: Graph, spec: ModelSpec, w: Weights, block: NextNBlock) -> None:
    draft_decoder(g, spec.with_dense_attention(), w, block, mixer=latent_attention)
