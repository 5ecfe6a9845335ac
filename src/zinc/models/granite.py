"""Granite 3 and 4, dense: scales of embedding, residuals, attention scores and logits.

A file switches RoPE off with a key that other families use for something else.
"""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.dense_spec import dense_spec
from zinc.models.parts.metadata import Metadata
from zinc.models.parts.scales import scaled
from zinc.models.parts.spec import ModelSpec


def spec(file: GGUFFile) -> ModelSpec:
    Metadata(file, "granite").require("logit_scale")
    base = scaled(file, dense_spec(file, "granite", neox=False))
    if file.bool("granite.rope.scaling.finetuned", default=True):
        return base
    return base.map_attention(lambda a: replace(a, rope=None))


build = decoder
