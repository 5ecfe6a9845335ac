"""StarCoder 2: layer norms, an MLP without gate, and biases everywhere.

Attention sees a sliding window in every layer. Converted files do not state it, and all published
models have the same.
"""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.metadata import MAX_CONTEXT, Metadata
from zinc.models.parts.spec import ModelSpec, Norm
from zinc.ops.values import ActivationFn

WINDOW = 4096


def spec(file: GGUFFile) -> ModelSpec:
    base = dense_spec(file, "starcoder2", neox=True, norm=Norm.LAYER_WITH_BIAS)
    m = Metadata(file, "starcoder2")
    window = m.optional_size("attention.sliding_window", MAX_CONTEXT) or WINDOW
    plain = replace(base, activation=ActivationFn.GELU, gated_mlp=False)
    return plain.with_window(window)


build = decoder
