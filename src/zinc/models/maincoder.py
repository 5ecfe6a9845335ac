"""Maincoder, dense: RMS norm on every q and k head after RoPE, which rotates adjacent pairs."""

from dataclasses import replace

from zinc.formats.gguf import GGUFFile
from zinc.models.parts.decoder import decoder
from zinc.models.parts.spec import ModelSpec, dense_spec


def spec(file: GGUFFile) -> ModelSpec:
    base = dense_spec(file, "maincoder", neox=False, qk_norm=True)
    return base.map_attention(lambda a: replace(a, late_norm=True))


build = decoder
