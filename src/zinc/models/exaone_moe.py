"""EXAONE with experts (K-EXAONE): sigmoid scores with a bias for the choice, a shared expert.

Leading layers are dense. Every fourth layer has full attention without RoPE; the others have a
sliding window and RoPE.
"""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.metadata import MAX_CONTEXT, Metadata
from zinc.models.parts.moe import experts_from, leading_dense_layers
from zinc.models.parts.nextn import sliding_draft_decoder
from zinc.models.parts.spec import ModelSpec


def spec(file: GGUFFile) -> ModelSpec:
    m = Metadata(file, "exaone-moe")
    m.require("expert_gating_func", "expert_weights_scale")
    base = dense_spec(file, "exaone-moe", neox=True, qk_norm=True)
    local = replace(base.attention[0], window=m.size("attention.sliding_window", MAX_CONTEXT))
    full = replace(base.attention[0], rope=None)
    return replace(
        base,
        attention=tuple(local if s else full for s in m.sliding_layers(base.n_layers, period=4)),
        experts=experts_from(file, "exaone-moe"),
        n_dense_layers=leading_dense_layers(file, "exaone-moe", base.n_layers),
    )


build = decoder
build_draft = sliding_draft_decoder
