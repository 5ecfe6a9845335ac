"""GLM 4.5 and 4.6: sigmoid router with a choice bias, shared experts, leading dense layers, partial
RoPE, biases on q, k and v, and (in the large ones) norms on the heads of q and k."""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.moe import expert_decoder, experts_from, leading_dense_layers
from zinc.models.parts.spec import Metadata, ModelSpec, dense_spec
from zinc.models.parts.weights import Weights
from zinc.ops.graph import Graph
from zinc.ops.moe import SIGMOID


def spec(file: GGUFFile) -> ModelSpec:
    m = Metadata(file, "glm4moe")
    m.require("rope.freq_base", "rope.dimension_count")
    # No key says whether the heads have norms; they have them in every layer or in none.
    qk_norm = any(name.endswith(".attn_q_norm.weight") for name in file.tensors)
    base = dense_spec(file, "glm4moe", neox=True, qk_norm=qk_norm)
    n_dense = leading_dense_layers(file, "glm4moe", base.n_layers)
    experts = None
    if n_dense < base.n_layers:
        m.require("expert_weights_scale")
        gated = "glm4moe.expert_gating_func" in file.metadata
        experts = experts_from(file, "glm4moe", scoring=None if gated else SIGMOID)
    return replace(base, experts=experts, n_dense_layers=n_dense)


def build(g: Graph, spec: ModelSpec, w: Weights) -> None:
    expert_decoder(g, spec, w, ffn_norm="post_attention_norm")
