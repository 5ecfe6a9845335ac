"""OLMo 2 and 3, dense: norms follow attention and MLP, none precede them.

q and k are normalised over all heads together. OLMo 3 has sliding layers, whose RoPE is not scaled.
"""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.metadata import MAX_CONTEXT, Metadata
from zinc.models.parts.rope import sliding_rope
from zinc.models.parts.spec import ModelSpec, QKNorm


def spec(file: GGUFFile) -> ModelSpec:
    m = Metadata(file, "olmo2")
    base = dense_spec(file, "olmo2", neox=True, qk_norm=QKNorm(joint=True))
    full = base.attention[0]
    attention = [full] * base.n_layers
    if window := m.optional_size("attention.sliding_window", MAX_CONTEXT):
        assert full.rope is not None
        rope = sliding_rope(file, "olmo2", full.rope.dims, full.head_dim, full.rope.base)
        local = replace(full, window=window, rope=rope)
        attention = [local if s else full for s in m.sliding_layers(base.n_layers, period=4)]
    return replace(base, attention=tuple(attention), pre_norms=False, post_norms=True)


build = decoder
