"""GLM 4.5 and 4.6: experts chosen by sigmoid scores with a bias, after leading dense layers.

There are shared experts, partial RoPE, and biases on q, k and v. The large models normalise the
heads of q and k.
"""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.metadata import Metadata
from zinc.models.parts.moe import experts_from, leading_dense_layers
from zinc.models.parts.nextn import draft_decoder
from zinc.models.parts.spec import ModelSpec
from zinc.ops.moe import SIGMOID


def spec(file: GGUFFile) -> ModelSpec:
    m = Metadata(file, "glm4moe")
    m.require("rope.freq_base", "rope.dimension_count")
    # No key states whether heads are normalised: all layers have these tensors or none has.
    qk_norm = any(name.endswith(".attn_q_norm.weight") for name in file.tensors)
    base = dense_spec(file, "glm4moe", neox=True, qk_norm=qk_norm)
    n_dense = leading_dense_layers(file, "glm4moe", base.n_layers)
    experts = None
    if n_dense < base.n_layers:
        m.require("expert_weights_scale")
        gated = "glm4moe.expert_gating_func" in file.metadata
        experts = experts_from(file, "glm4moe", scoring=None if gated else SIGMOID)
    return replace(base, experts=experts, n_dense_layers=n_dense, mlp_norm="post_attention_norm")


build = decoder
build_draft = draft_decoder
