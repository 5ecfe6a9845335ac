"""StableLM 2 and StableLM 3B: layer norms and partial RoPE.

The 12B model also normalises the heads of q and k, and its attention and MLP read the same rows.
"""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.spec import ModelSpec, Norm
from zinc.models.parts.weights import in_layers


def spec(file: GGUFFile) -> ModelSpec:
    qk_norm = in_layers(file, "attn_q_norm.weight")
    base = dense_spec(file, "stablelm", neox=True, norm=Norm.LAYER_WITH_BIAS, qk_norm=qk_norm)
    if in_layers(file, "ffn_norm.weight"):  # the key of parallel residuals is often wrong
        return base
    return replace(base, parallel=True, mlp_norm=base.mixer_norm)


build = decoder
