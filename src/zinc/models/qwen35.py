"""Qwen 3.5 and later, dense: three layers of Gated DeltaNet, then one of gated attention.

For text, the sections of its multi-axis RoPE (M-RoPE) are plain RoPE over the same dimensions.
"""

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.delta_net import delta_net_or_attention, delta_net_spec
from zinc.models.parts.nextn import draft_decoder
from zinc.models.parts.spec import ModelSpec
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph


def spec(file: GGUFFile) -> ModelSpec:
    return delta_net_spec(file, "qwen35")


def build(g: Graph, spec: ModelSpec, w: Weights) -> None:
    decoder(g, spec, w, mixer=delta_net_or_attention)


build_draft = draft_decoder
