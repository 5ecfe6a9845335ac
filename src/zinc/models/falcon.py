"""Falcon 7B, 40B, 180B and Falcon 2: attention and an MLP without gate read the same rows.

The larger models normalise the rows of attention and of the MLP separately.
"""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.spec import ModelSpec, Norm
from zinc.models.parts.weights import in_layers
from zinc.ops.values import ActivationFn


def spec(file: GGUFFile) -> ModelSpec:
    base = dense_spec(file, "falcon", neox=True, norm=Norm.LAYER_WITH_BIAS)
    norm = "attn_norm_2" if in_layers(file, "attn_norm_2.weight") else "attn_norm"
    parallel = replace(base, parallel=True, mixer_norm=norm, mlp_norm="attn_norm")
    return replace(parallel, activation=ActivationFn.GELU_ERF, gated_mlp=False)


build = decoder
