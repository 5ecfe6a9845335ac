"""EXAONE 4, dense: norms follow attention and MLP, none precede them; q and k are normalised.

In the large model, every fourth layer has full attention without RoPE; the others have a sliding
window and RoPE.
"""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.metadata import MAX_CONTEXT, Metadata
from zinc.models.parts.spec import ModelSpec


def spec(file: GGUFFile) -> ModelSpec:
    m = Metadata(file, "exaone4")
    base = dense_spec(file, "exaone4", neox=True, qk_norm=True)
    attention = list(base.attention)
    if window := m.optional_size("attention.sliding_window", MAX_CONTEXT):
        local = replace(attention[0], window=window)
        full = replace(attention[0], rope=None)
        attention = [local if s else full for s in m.sliding_layers(base.n_layers, period=4)]
    return replace(base, attention=tuple(attention), pre_norms=False, post_norms=True)


build = decoder
