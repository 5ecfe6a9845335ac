"""Command R, R+ and Aya 23: attention and MLP read the same rows; the logits are scaled.

Layer norms have no bias. Command R+ also normalises the heads of q and k.
"""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.metadata import Metadata
from zinc.models.parts.spec import ModelSpec, Norm
from zinc.models.parts.weights import in_layers


def spec(file: GGUFFile) -> ModelSpec:
    qk_norm = in_layers(file, "attn_q_norm.weight")
    base = dense_spec(file, "command-r", neox=False, norm=Norm.LAYER, qk_norm=qk_norm)
    scale = Metadata(file, "command-r").optional_positive("logit_scale") or 1.0
    return replace(base, parallel=True, mlp_norm=base.mixer_norm, logit_scale=scale)


build = decoder
