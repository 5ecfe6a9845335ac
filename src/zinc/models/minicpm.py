"""MiniCPM 1 and 4, dense: a Llama with scales of embedding, residuals and logits.

The first files do not state the scales, which are those of the 2B model.
"""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.scales import scaled
from zinc.models.parts.spec import ModelSpec


def spec(file: GGUFFile) -> ModelSpec:
    base = dense_spec(file, "minicpm", neox=False)
    first = replace(base, embed_scale=12.0, logit_scale=256 / base.hidden)
    return scaled(file, first, residual=1.4 / base.n_layers**0.5)


build = decoder
